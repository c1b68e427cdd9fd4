// AlgorithmFile: the algorithm that each matrix product takes, kept in a file so that all ranks and
// all restarts of a run take the same one and so get the same bits, and only the first has to find
// it.
//
// The file has a line of JSON for each product of each kind of GPU, and is only ever appended to,
// under a lock (flock); of two lines for the same product, the first counts. A process that misses
// one decides, and appends it unless another was faster: then the other's counts. No decision is
// made under the lock, since it waits for a GPU, which may wait for a rank that wants the lock. A
// process that dies while appending leaves a line without its end, which the next one removes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace dstrain {

struct ChosenAlgorithm {
  std::string name;           ///< for the caller to understand
  double microseconds = 0.0;  ///< that it took, for people; 0: not timed

  bool operator==(const ChosenAlgorithm&) const = default;
};

class AlgorithmFile {
 public:
  /// Makes the file, with its folder, where there is none. `device` is all that an algorithm
  /// depends on beside the product: "NVIDIA H100 80GB HBM3, sm_90, …". Throws std::runtime_error
  /// that names the file where it cannot be used or is damaged.
  AlgorithmFile(std::string path, std::string device);
  AlgorithmFile(const AlgorithmFile&) = delete;
  AlgorithmFile& operator=(const AlgorithmFile&) = delete;
  ~AlgorithmFile();

  /// Returns what the file says about `product`. Where it says nothing, returns what `decide`
  /// returns, which then is in the file, or what another process put there meanwhile. `decide` may
  /// call choose.
  ChosenAlgorithm choose(const std::string& product,
                         const std::function<ChosenAlgorithm()>& decide);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void open();
  /// nullptr if it is not in the part of the file that was read.
  [[nodiscard]] const ChosenAlgorithm* find(const std::string& product) const;
  /// Reads what others have appended. Called under the lock, as append.
  void read_on();
  void take_in(std::string_view line);
  void append(const std::string& product, const ChosenAlgorithm& chosen);

  std::string path_;
  std::string device_;
  int fd_ = -1;
  std::int64_t read_bytes_ = 0;  // all of them whole lines
  std::int64_t read_lines_ = 0;
  std::map<std::string, ChosenAlgorithm, std::less<>> chosen_;  // of this device
};

}  // namespace dstrain
