#include "cmd/memory/memory_table.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

constexpr std::size_t kMostColumns = 8;

/// "0-4, 40-44".
std::string blocks_text(const std::vector<Range>& chunks) {
  std::string text;
  for (const Range& blocks : chunks) {
    text += text.empty() ? "" : ", ";
    text += blocks.size() == 1 ? fmt::format("{}", blocks.begin)
                               : fmt::format("{}-{}", blocks.begin, blocks.end - 1);
  }
  return text;
}

/// The stages that are shown: all, or some spread evenly from the first to the last, and the
/// fullest.
std::vector<std::size_t> columns_of(const std::vector<StageOutline>& stages) {
  std::set<std::size_t> shown;
  const std::size_t columns = std::min(stages.size(), kMostColumns - 1);
  for (std::size_t i = 0; i < columns; ++i) {
    shown.insert(columns == 1 ? 0 : i * (stages.size() - 1) / (columns - 1));
  }
  for (std::size_t i = 0; i < stages.size() && stages.size() <= kMostColumns; ++i) {
    shown.insert(i);
  }
  shown.insert(static_cast<std::size_t>(&fullest(stages) - stages.data()));
  return {shown.begin(), shown.end()};
}

/// Rows of cells, the first cell a row's name; columns as wide as they need.
class Grid {
 public:
  using Cell = std::function<std::string(std::size_t column)>;
  explicit Grid(std::size_t columns) : columns_(columns) {}

  void add(std::string name, const Cell& cell) {
    std::vector<std::string> row{std::move(name)};
    for (std::size_t column = 0; column < columns_; ++column) {
      row.push_back(cell(column));
    }
    rows_.push_back(std::move(row));
  }

  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> widths(columns_ + 1, 0);
    for (const std::vector<std::string>& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string text;
    for (const std::vector<std::string>& row : rows_) {
      std::string line = fmt::format("{:<{}}", row[0], widths[0]);
      for (std::size_t i = 1; i < row.size(); ++i) {
        line += fmt::format("  {:>{}}", row[i], widths[i]);
      }
      text += line + "\n";
    }
    return text;
  }

 private:
  std::size_t columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace

std::string memory_table(const RunOutline& outline) {
  const std::vector<StageOutline>& stages = outline.stages;
  const std::vector<std::size_t> shown = columns_of(stages);
  const SizeUnit unit = unit_for(fullest(stages).total_bytes());
  Grid grid(shown.size());
  const auto add = [&](std::string name, const auto& of_stage) {
    grid.add(std::move(name),
             [&](std::size_t column) { return std::string(of_stage(stages[shown[column]])); });
  };
  if (stages.size() > 1) {
    grid.add("pipeline stage",
             [&](std::size_t column) { return fmt::format("{}", shown[column]); });
  }
  add("blocks", [](const StageOutline& stage) { return blocks_text(stage.blocks); });
  add("rank that holds most",
      [](const StageOutline& stage) { return fmt::format("{}", stage.worst_rank); });
  add("micro-batches in flight",
      [](const StageOutline& stage) { return fmt::format("{}", stage.micro_batches_in_flight); });
  for (const MemoryComponent component : kMemoryComponents) {
    const bool used = std::any_of(stages.begin(), stages.end(), [&](const StageOutline& stage) {
      return stage.bytes[component] > 0;
    });
    if (used) {
      add(std::string(name_of(component)),
          [&](const StageOutline& stage) { return unit.number(stage.bytes[component]); });
    }
  }
  add("planned", [&](const StageOutline& stage) { return unit.number(stage.total_bytes()); });
  std::string text =
      fmt::format("{} that a rank of each pipeline stage holds:\n{}", unit.name, grid.text());
  if (shown.size() < stages.size()) {
    text += fmt::format("({} of {} stages, the fullest among them; --json has all)\n", shown.size(),
                        stages.size());
  }
  return text;
}

}  // namespace dstrain
