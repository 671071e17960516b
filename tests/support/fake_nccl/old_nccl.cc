// A library that is too old. The loader must call nothing but ncclGetVersion.
extern "C" int ncclGetVersion(int* version) {
  *version = 22707;
  return 0;
}
