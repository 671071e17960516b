// A module that claims to be built for another version of Tessera, or another LibTorch.
extern "C" int tessera_cuda_graph_interface_version() { return OTHER_INTERFACE; }
extern "C" const char* tessera_cuda_graph_torch_version() { return "1.0.0"; }
