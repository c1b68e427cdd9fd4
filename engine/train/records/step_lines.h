// StepLines: a file of one JSON object a line, each of a step, as far as a run has come: a run that
// resumes from a checkpoint drops the lines of later steps, and a line for which there is no space
// waits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "engine/train/records/appended_file.h"

namespace dstrain {

class StepLines {
 public:
  /// Continues after `resumed_step`: later lines, from a run that continued without saving, are
  /// dropped; step 0 starts a new file (step_file.h). Throws StorageError.
  StepLines(std::filesystem::path path, std::int64_t resumed_step);

  /// Takes a line of a step, without its end, that begins with "step" as its first member.
  void add(std::int64_t step, std::string_view line);
  /// Writes what was added, as AppendedFile::flush() does.
  void flush() { file_.flush(); }
  [[nodiscard]] bool has_unwritten() const { return file_.has_unwritten(); }

 private:
  AppendedFile file_;
};

}  // namespace dstrain
