// A library that claims to be a module of another version.
extern "C" [[gnu::visibility("default")]] int tessera_cuda_interface_version() { return -7; }
