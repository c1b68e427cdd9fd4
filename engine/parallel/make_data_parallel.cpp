#include "engine/parallel/data_parallel.h"

namespace dstrain {

std::unique_ptr<DataParallel> make_data_parallel(int zero_stage, const DataParallelParts& parts) {
  switch (zero_stage) {
    case 0:
      return make_zero0(parts);
    case 1:
      return make_zero1(parts);
    case 2:
      return make_zero2(parts);
    case 3:
      return make_zero3(parts);
    default:
      fail_check(fmt::format("there is no ZeRO stage {}", zero_stage),
                 std::source_location::current());
  }
}

}  // namespace dstrain
