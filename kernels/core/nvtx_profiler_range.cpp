#include <nvtx3/nvToolsExt.h>

#include "kernels/core/trace_range.h"

namespace dstrain {
namespace {

/// The domain is our own, so that profilers can show it alone.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t ours = nvtxDomainCreateA("dstrain");
  return ours;
}

}  // namespace

ProfilerRange::ProfilerRange(const char* name, std::int64_t number) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  event.payload.llValue = number;
  (void)nvtxDomainRangePushEx(domain(), &event);
}

ProfilerRange::~ProfilerRange() {
  (void)nvtxDomainRangePop(domain());
}

}  // namespace dstrain
