#include "engine/train/records/step_lines.h"

#include <utility>

#include "engine/train/records/step_file.h"

namespace dstrain {
namespace {

AppendedFile open_lines(std::filesystem::path path, std::int64_t resumed_step) {
  StepFile opened = open_step_file(path, resumed_step);
  return {std::move(path), std::move(opened.file), opened.bytes};
}

}  // namespace

StepLines::StepLines(std::filesystem::path path, std::int64_t resumed_step)
    : file_(open_lines(std::move(path), resumed_step)) {}

void StepLines::add(std::int64_t step, std::string_view line) {
  file_.add(step, line);
  file_.add(step, "\n");
}

}  // namespace dstrain
