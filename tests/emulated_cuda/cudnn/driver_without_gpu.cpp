// A GPU driver's library into which everything can be loaded and on which nothing runs: enough for
// cuDNN to compile kernels and finish its plans where there is no GPU.
namespace {

int some_object = 0;
constexpr int kSuccess = 0;
constexpr int kStubLibrary = 34;  // CUDA_ERROR_STUB_LIBRARY, as the toolkit's own stub says

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library,
                      const void* /*code*/,
                      void* /*jit_options*/,
                      void* /*jit_values*/,
                      unsigned /*jit_count*/,
                      void* /*options*/,
                      void* /*values*/,
                      unsigned /*count*/) {
  *library = &some_object;
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel, void* /*library*/, const char* /*name*/) {
  *kernel = &some_object;
  return kSuccess;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuGetErrorName(int /*error*/, const char** text) {
  *text = "CUDA_ERROR_STUB_LIBRARY";
  return kSuccess;
}
int cuGetErrorString(int /*error*/, const char** text) {
  *text = "there is no GPU";
  return kSuccess;
}

// The attributes of a kernel that cuDNN sets.
#define SUCCEEDS(name) \
  int name() {         \
    return kSuccess;   \
  }
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuFuncSetAttribute)

// Functions that it looks up but does not need for a plan.
#define FAILS(name)      \
  int name() {           \
    return kStubLibrary; \
  }
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetDevice)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetAttribute)
FAILS(cuDeviceGetCount)
FAILS(cuDevicePrimaryCtxRelease)
FAILS(cuDevicePrimaryCtxReset)
FAILS(cuDevicePrimaryCtxRetain)
FAILS(cuFuncGetAttribute)
FAILS(cuInit)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkAddData_v2)
FAILS(cuLinkAddFile_v2)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkCreate_v2)
FAILS(cuLinkDestroy)
FAILS(cuMemcpyDtoH_v2)
FAILS(cuModuleGetFunction)
FAILS(cuModuleGetGlobal_v2)
FAILS(cuModuleLoadData)
FAILS(cuModuleLoadDataEx)
FAILS(cuModuleLoadFatBinary)
FAILS(cuModuleUnload)
FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
FAILS(cuStreamSynchronize)
FAILS(cuTensorMapEncodeTiled)

}  // extern "C"
