// A library that says it is a module of another version of Tessera, or of another LibTorch.
extern "C" int tessera_cuda_graph_interface_version() { return OTHER_INTERFACE; }
extern "C" const char* tessera_cuda_graph_torch_version() { return "1.0.0"; }
