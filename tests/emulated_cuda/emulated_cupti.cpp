#include "tests/emulated_cuda/emulated_cupti.h"

#include <cstdint>
#include <cstring>
#include <set>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cupti_functions.h"

namespace dstrain {
namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
CUpti_TimestampCallbackFunc timestamp = nullptr;
std::set<CUpti_ActivityKind> enabled;
bool has_work = false;

CUptiResult register_callbacks(CUpti_BuffersCallbackRequestFunc requested,
                               CUpti_BuffersCallbackCompleteFunc completed) {
  request = requested;
  complete = completed;
  return CUPTI_SUCCESS;
}

CUptiResult register_timestamp(CUpti_TimestampCallbackFunc function) {
  timestamp = function;
  return CUPTI_SUCCESS;
}

CUptiResult enable(CUpti_ActivityKind kind) {
  if (test::emulated_cupti().refuses) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  enabled.insert(kind);
  has_work = true;
  return CUPTI_SUCCESS;
}

CUptiResult disable(CUpti_ActivityKind kind) {
  enabled.erase(kind);
  return CUPTI_SUCCESS;
}

template <typename Record>
void put(const Record& record, std::uint8_t* buffer, std::size_t& valid) {
  std::memcpy(buffer + valid, &record, sizeof record);
  valid += sizeof record;
}

/// A kernel, a copy and a kernel without times, by a GPU that did them a moment ago.
CUptiResult flush_all(std::uint32_t /*flag*/) {
  if (!has_work) return CUPTI_SUCCESS;
  has_work = false;
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0;
  std::size_t most = 0;
  request(&buffer, &bytes, &most);
  const std::uint64_t now = timestamp();
  std::size_t valid = 0;
  CUpti_ActivityKernel10 kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.start = now - 3000;
  kernel.end = now - 2000;
  kernel.streamId = 7;
  kernel.name = "_ZN7dstrain4cuda3addEPfi";
  put(kernel, buffer, valid);
  CUpti_ActivityMemcpy6 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  copy.start = now - 2500;
  copy.end = now - 1500;
  copy.streamId = 13;
  copy.bytes = 4096;
  put(copy, buffer, valid);
  kernel.start = 0;
  kernel.end = 0;
  put(kernel, buffer, valid);
  complete(nullptr, 0, buffer, bytes, valid);
  return CUPTI_SUCCESS;
}

std::size_t size_of_record(const CUpti_Activity& record) {
  return record.kind == CUPTI_ACTIVITY_KIND_MEMCPY ? sizeof(CUpti_ActivityMemcpy6)
                                                   : sizeof(CUpti_ActivityKernel10);
}

CUptiResult get_next_record(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  std::uint8_t* const next =
      *record == nullptr ? buffer
                         : reinterpret_cast<std::uint8_t*>(*record) + size_of_record(**record);
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult get_result_string(CUptiResult /*result*/, const char** text) {
  *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
  return CUPTI_SUCCESS;
}

}  // namespace

const CuptiFunctions& cupti_functions() {
  static const CuptiFunctions functions{.register_callbacks = register_callbacks,
                                        .register_timestamp = register_timestamp,
                                        .enable = enable,
                                        .disable = disable,
                                        .flush_all = flush_all,
                                        .get_next_record = get_next_record,
                                        .get_result_string = get_result_string};
  if (test::emulated_cupti().is_missing) {
    throw CudaError("traces of a GPU's kernels want libcupti, which did not open");
  }
  return functions;
}

namespace test {

EmulatedCupti& emulated_cupti() {
  static EmulatedCupti state;
  return state;
}

}  // namespace test
}  // namespace dstrain
