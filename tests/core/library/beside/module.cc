// The module that is looked for.
extern "C" int beside_module_answer() { return 42; }
