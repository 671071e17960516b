// The module to be found.
extern "C" int beside_module_answer() { return 42; }
