// The CUDA half of another LibTorch: it needs a symbol that the loaded CPU half does not have.
namespace c10 {
void only_another_version_of_libtorch_has_this();
}  // namespace c10

extern "C" void tessera_unfit_cuda() { c10::only_another_version_of_libtorch_has_this(); }
