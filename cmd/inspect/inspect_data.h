// prepare-data --inspect: the first samples that a run draws from its data, as its model will see
// them: ids, their text, where documents begin and end, positions, and which tokens predict
// nothing.
#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

struct InspectRequest {
  /// A folder that prepare-data made, or the prefix of token files. With a config it stands for
  /// data.train, and may be empty: what the config names.
  std::string dataset{};
  std::int64_t samples = 0;  ///< how many
  std::string config{};      ///< of the run; empty: the run of the next three
  std::int64_t sequence = 128;
  std::uint64_t seed = 1234;  ///< training.seed
  bool packed = false;        ///< data.pack "best_fit"
  bool json = false;
  bool colours = false;
};

/// Returns what is to be printed. Throws ConfigError.
std::string inspect_data(const InspectRequest& request);

}  // namespace dstrain
