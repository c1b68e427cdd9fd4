// CUPTI, the toolkit's library that tells what a GPU did and when, opened at run time: only traces
// need it.
#pragma once

#include <cupti.h>

namespace dstrain {

struct CuptiFunctions {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&cuptiGetResultString) get_result_string = nullptr;
};

/// Throws CudaError where the library is not there.
const CuptiFunctions& cupti_functions();

}  // namespace dstrain
