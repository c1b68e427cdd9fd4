#include "kernels/cuda/cupti_functions.h"

#include <string>

#include <fmt/format.h>

#include "kernels/cuda/open_library.h"

namespace dstrain {

const CuptiFunctions& cupti_functions() {
  static const CuptiFunctions functions = [] {
    // Records have another form in each of the toolkit's major versions.
    const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
    void* const library = open_library(name, "traces of a GPU's kernels");
    CuptiFunctions found;
    find_function(library, "cuptiActivityRegisterCallbacks", found.register_callbacks);
    find_function(library, "cuptiActivityRegisterTimestampCallback", found.register_timestamp);
    find_function(library, "cuptiActivityEnable", found.enable);
    find_function(library, "cuptiActivityDisable", found.disable);
    find_function(library, "cuptiActivityFlushAll", found.flush_all);
    find_function(library, "cuptiActivityGetNextRecord", found.get_next_record);
    find_function(library, "cuptiGetResultString", found.get_result_string);
    return found;
  }();
  return functions;
}

}  // namespace dstrain
