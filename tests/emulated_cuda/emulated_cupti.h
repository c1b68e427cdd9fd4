// CUPTI as the emulated GPU has it: each trace hears of a kernel and a copy.
#pragma once

namespace dstrain::test {

struct EmulatedCupti {
  bool is_missing = false;  ///< the library
  bool refuses = false;     ///< to listen, as drivers do that only root may profile on
};
EmulatedCupti& emulated_cupti();

}  // namespace dstrain::test
