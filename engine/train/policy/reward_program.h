// RewardProgram: a program of the user's that says how good completions are. It is started once,
// reads a JSON object a line from stdin, and answers each with a line: a number, or an object with
// a "reward". Its stderr is this process's.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "engine/base/file_descriptor.h"
#include "engine/config/config_error.h"

namespace dstrain {

class RewardProgram {
 public:
  /// Starts `command` by the shell. Throws ConfigError.
  explicit RewardProgram(std::string command);
  RewardProgram(const RewardProgram&) = delete;
  RewardProgram& operator=(const RewardProgram&) = delete;
  /// Ends its input, and waits for it to end, at most ten seconds: then it is killed.
  ~RewardProgram();

  /// Its rewards of these lines, none of which has a line end. Throws ConfigError.
  std::vector<double> rewards(const std::vector<std::string>& lines);

 private:
  /// How it ended, as a clause.
  [[nodiscard]] std::string end();
  [[nodiscard]] double reward_of(const std::string& answer) const;

  std::string command_;
  pid_t process_ = -1;
  FileDescriptor input_;
  FileDescriptor output_;
  std::string unread_;  // of its output
};

}  // namespace dstrain
