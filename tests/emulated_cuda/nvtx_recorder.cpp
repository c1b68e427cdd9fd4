// A profiler as NVTX knows them: a library named by NVTX_INJECTION64_PATH, which is given the
// program's ranges. It writes one line a range, "depth name number", to $NVTX_RECORD.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <nvtx3/nvToolsExt.h>

namespace {

std::FILE* out = nullptr;
int depth = 0;
int some_domain = 0;

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  std::fprintf(out, "domain %s\n", name);
  return reinterpret_cast<nvtxDomainHandle_t>(&some_domain);
}
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  std::fprintf(out, "%d %s %lld\n", depth, event->message.ascii,
               static_cast<long long>(event->payload.llValue));
  return depth++;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  std::fflush(out);
  return --depth;
}

template <typename Function>
void put(NvtxFunctionTable table, int at, Function* function) {
  *table[at] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const char* const path = std::getenv("NVTX_RECORD");
  out = path != nullptr ? std::fopen(path, "w") : nullptr;
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (out == nullptr || callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  put(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  put(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  put(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}
