// A library that is too old. The loader must not get further than its version.
extern "C" int ncclGetVersion(int* version) {
  *version = 22707;
  return 0;
}
