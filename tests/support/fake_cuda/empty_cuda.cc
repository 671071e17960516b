// A library of the right name that registers nothing.
extern "C" void tessera_empty_cuda() {}
