#include "engine/train/step_lines.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_store.h"

namespace dstrain {
namespace {

/// Lines of earlier steps; a torn last line is dropped.
std::string lines_up_to(const std::filesystem::path& path, std::int64_t last_step) {
  std::string kept;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("step", std::int64_t{-1}) <= last_step &&
        json.contains("step")) {
      kept += line + "\n";
    }
  }
  return kept;
}

}  // namespace

StepLines::StepLines(std::filesystem::path path, std::int64_t resumed_step)
    : path_(std::move(path)) {
  const std::string kept = resumed_step > 0 ? lines_up_to(path_, resumed_step) : std::string();
  const std::filesystem::path temporary = path_.string() + ".tmp";
  {
    std::ofstream rewrite(temporary, std::ios::trunc);
    rewrite << kept;
    if (!rewrite.flush()) {
      throw StorageError(fmt::format("{}: cannot be written", temporary.string()));
    }
  }
  std::filesystem::rename(temporary, path_);
  written_bytes_ = kept.size();
  out_.open(path_, std::ios::app);
  if (!out_) {
    throw StorageError(fmt::format("{}: cannot be opened for writing", path_.string()));
  }
}

void StepLines::add(std::string_view line) {
  unwritten_.append(line).push_back('\n');
}

void StepLines::flush() {
  if (!has_unwritten()) {
    return;
  }
  if (!out_.is_open()) {
    out_.open(path_, std::ios::app);
  }
  out_ << unwritten_ << std::flush;
  if (!out_) {
    out_.close();
    out_.clear();
    std::error_code ignored;  // half a line is dropped when the run resumes, too
    std::filesystem::resize_file(path_, written_bytes_, ignored);
    const std::string_view last = std::string_view(unwritten_).substr(0, unwritten_.size() - 1);
    const auto begin = last.rfind('\n');
    throw StorageError(fmt::format(
        "{}: the line of step {} cannot be written", path_.string(),
        nlohmann::json::parse(last.substr(begin == last.npos ? 0 : begin + 1)).value("step", -1)));
  }
  written_bytes_ += unwritten_.size();
  unwritten_.clear();
}

}  // namespace dstrain
