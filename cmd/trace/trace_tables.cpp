#include "cmd/trace/trace_tables.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/base/storage_error.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/config_error.h"
#include "engine/config/config_json.h"
#include "engine/train/trace/trace_file.h"
#include "engine/train/trained_part.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

/// Adds the time of a unit to that of the pass that it is in.
void add_unit(const Json& event, const std::string& pass, std::vector<UnitRow>& units) {
  const std::string name = event.at("name");
  auto unit = std::find_if(units.begin(), units.end(),
                           [&](const UnitRow& row) { return row.name == name; });
  if (unit == units.end()) unit = units.insert(units.end(), {.name = name});
  (pass == "forward" ? unit->forward : unit->backward) += event.at("dur").get<double>() * 1e-6;
}

void add_transfer(const Json& event, std::vector<TransferRow>& rows) {
  const Json& args = event.at("args");
  const TransferRow one{.op = event.at("name"),
                        .purpose = args.at("for"),
                        .group = args.at("group"),
                        .ranks = args.at("ranks"),
                        .bytes = args.at("bytes")};
  const auto key = [](const TransferRow& row) {
    return std::tie(row.op, row.purpose, row.group, row.bytes);
  };
  auto row = std::find_if(rows.begin(), rows.end(),
                          [&](const TransferRow& other) { return key(other) == key(one); });
  if (row == rows.end()) row = rows.insert(rows.end(), one);
  ++row->count;
  row->seconds += event.at("dur").get<double>() * 1e-6;
}

void add_operation(const Json& event, std::vector<OperationRow>& rows) {
  const std::string name = event.at("name");
  const Json& args = event.at("args");
  const std::string sizes = args.value("sizes", std::string());
  auto row = std::find_if(rows.begin(), rows.end(), [&](const OperationRow& other) {
    return other.name == name && other.sizes == sizes;
  });
  if (row == rows.end()) row = rows.insert(rows.end(), {.name = name, .sizes = sizes});
  row->count += 1.0;
  row->seconds += event.at("dur").get<double>() * 1e-6;
  row->flops += args.value("flops", 0.0);
  row->bytes += args.value("bytes", 0.0);
}

/// The number in "blocks.12"; -1: it is no block.
int block_of(const std::string& unit) {
  constexpr std::string_view kPrefix = "blocks.";
  if (!unit.starts_with(kPrefix)) return -1;
  int number = -1;
  const char* const begin = unit.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, unit.data() + unit.size(), number);
  return error == std::errc() && end == unit.data() + unit.size() ? number : -1;
}

std::string bytes_text(double bytes) {
  if (bytes < 1024.0) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1024.0 * 1024.0) return fmt::format("{:.1f} KiB", bytes / 1024.0);
  return fmt::format("{:.1f} MiB", bytes / (1024.0 * 1024.0));
}

}  // namespace

double TransferRow::algorithm_rate() const {
  return seconds > 0.0 ? static_cast<double>(bytes) * static_cast<double>(count) / seconds * 1e-9
                       : 0.0;
}

double TransferRow::bus_rate() const {
  return algorithm_rate() * bus_share(op, ranks);
}

TraceTables tables_of(const std::filesystem::path& folder, int rank) {
  TraceTables tables{.rank = rank};
  double all_steps = 0.0;
  try {
    // The thread that computes comes first, its events by their beginnings: a unit lies in a pass.
    std::string pass;
    double pass_end = 0.0;
    double unit_end = 0.0;
    double step_end = 0.0;
    for (const std::string& line : read_rank_events(folder / rank_file_name(rank))) {
      const Json event = Json::parse(line);
      if (event.at("ph") != "X") continue;
      const std::string name = event.at("name");
      const double begin = event.at("ts");
      const double end = begin + event.at("dur").get<double>();
      if (event.at("args").contains("group")) {
        add_transfer(event, tables.transfers);
      } else if (event.at("cat") == "kernel") {
        if (begin < step_end) add_operation(event, tables.operations);
      } else if (event.at("cat") != "user_annotation") {
        continue;
      } else if (name == "step") {
        ++tables.steps;
        step_end = end;
        all_steps += (end - begin) * 1e-6;
      } else if (name == "forward" || name == "backward") {
        pass = name;
        pass_end = end;
      } else if (begin < pass_end && begin >= unit_end) {
        unit_end = end;
        add_unit(event, pass, tables.units);
      }
    }
  } catch (const Json::exception&) {
    throw StorageError(fmt::format("{} has events that are no events of a run",
                                   (folder / rank_file_name(rank)).string()));
  }
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, tables.steps));
  tables.step_seconds = all_steps / steps;
  for (UnitRow& unit : tables.units) {
    unit.forward /= steps;
    unit.backward /= steps;
  }
  for (OperationRow& operation : tables.operations) {
    operation.count /= steps;
    operation.seconds /= steps;
    operation.flops /= steps;
    operation.bytes /= steps;
  }
  const auto longer = [](const auto& a, const auto& b) { return a.seconds > b.seconds; };
  std::stable_sort(tables.transfers.begin(), tables.transfers.end(), longer);
  std::stable_sort(tables.operations.begin(), tables.operations.end(), longer);
  return tables;
}

void add_flops(const RunOverview& run, TraceTables& tables) {
  Config config;
  try {
    config = load_config((run.status.folder / "config.resolved.json").string(), {}).config;
  } catch (const ConfigError&) {
    return;  // of another version, or gone
  }
  const LayerShape shape = trained_part_of(config);
  const Architecture& architecture = shape.model;
  const std::int64_t sequence = config.data.sequence_length;
  if (run.starts.empty() || sequence <= 0) return;
  const auto degree = [&](const char* axis) {
    return std::max(1.0, number_at(run.starts.back().layout, axis).value_or(1.0));
  };
  // Data and context ranks share the tokens, tensor-parallel ones the work on each.
  const double tokens = static_cast<double>(config.batch.train_batch_size.value_or(0)) *
                        static_cast<double>(sequence) /
                        (degree("data") * degree("context") * degree("tensor"));
  for (UnitRow& unit : tables.units) {
    const int block = block_of(unit.name);
    if (block >= 0 && block < static_cast<int>(architecture.layers.size())) {
      const auto at = static_cast<std::size_t>(block);
      unit.flops =
          tokens * (block_flops_per_token(architecture, architecture.layers[at], sequence) -
                    left_out_flops_of_block(shape, at));
    } else if (unit.name == "head") {
      unit.flops = tokens * (head_flops_per_token(architecture) - left_out_flops_of_head(shape));
    }
  }
}

std::string to_text(const TraceTables& tables) {
  std::string text = fmt::format("rank {}, {} of {:.2f} ms\n\n", tables.rank,
                                 counted(tables.steps, "step"), tables.step_seconds * 1e3);
  std::size_t widest = 5;  // "GROUP"
  for (const TransferRow& row : tables.transfers)
    widest = std::max(widest, row.group.size());
  text += fmt::format("{:<16}{:<12}{:<{}}{:>7}{:>12}{:>8}{:>12}{:>12}{:>10}{:>10}\n", "TRANSFER",
                      "OF", "GROUP", widest, "RANKS", "SIZE", "COUNT", "TOTAL ms", "MEAN ms",
                      "GB/s", "BUS GB/s");
  for (const TransferRow& row : tables.transfers) {
    text += fmt::format("{:<16}{:<12}{:<{}}{:>7}{:>12}{:>8}{:>12.3f}{:>12.4f}{:>10.3f}{:>10.3f}\n",
                        row.op, row.purpose, row.group, widest, row.ranks,
                        bytes_text(static_cast<double>(row.bytes)), row.count, row.seconds * 1e3,
                        row.seconds * 1e3 / static_cast<double>(row.count), row.algorithm_rate(),
                        row.bus_rate());
  }
  text += fmt::format("\n{:<24}{:>14}{:>14}{:>10}{:>12}{:>12}\n", "UNIT", "FORWARD ms",
                      "BACKWARD ms", "SHARE", "GFLOP", "GFLOP/s");
  for (const UnitRow& unit : tables.units) {
    const double seconds = unit.forward + unit.backward;
    text += fmt::format("{:<24}{:>14.3f}{:>14.3f}{:>8.1f} %", unit.name, unit.forward * 1e3,
                        unit.backward * 1e3,
                        tables.step_seconds > 0.0 ? 100.0 * seconds / tables.step_seconds : 0.0);
    if (unit.flops > 0.0 && seconds > 0.0) {
      text += fmt::format("{:>12.3f}{:>12.1f}", unit.flops * 1e-9, unit.flops * 1e-9 / seconds);
    }
    text += '\n';
  }
  constexpr std::size_t kMostOperations = 30;
  constexpr std::size_t kMostOfName = 56;  // a GPU's kernels have long ones
  std::size_t name_width = 24;
  std::size_t sizes_width = 6;
  const auto shown =
      std::span(tables.operations).first(std::min(tables.operations.size(), kMostOperations));
  for (const OperationRow& row : shown) {
    name_width = std::max(name_width, std::min(row.name.size(), kMostOfName));
    const auto begins_character = [](char byte) { return (byte & 0xC0) != 0x80; };
    const auto width = std::count_if(row.sizes.begin(), row.sizes.end(), begins_character);
    sizes_width = std::max(sizes_width, static_cast<std::size_t>(width) + 2);
  }
  text += fmt::format("\n{:<{}}{:>{}}{:>10}{:>12}{:>12}{:>10}{:>10}{:>10}\n", "OPERATION",
                      name_width, "SIZES", sizes_width, "A STEP", "TOTAL ms", "MEAN ms", "SHARE",
                      "GFLOP/s", "GB/s");
  const auto rate = [](double work, double seconds) {
    return work > 0.0 && seconds > 0.0 ? fmt::format("{:.1f}", work * 1e-9 / seconds) : "";
  };
  for (const OperationRow& row : shown) {
    text += fmt::format("{:<{}}{:>{}}{:>10.1f}{:>12.3f}{:>12.4f}{:>8.1f} %{:>10}{:>10}\n",
                        row.name.substr(0, kMostOfName), name_width, row.sizes, sizes_width,
                        row.count, row.seconds * 1e3, row.seconds * 1e3 / row.count,
                        tables.step_seconds > 0.0 ? 100.0 * row.seconds / tables.step_seconds : 0.0,
                        rate(row.flops, row.seconds), rate(row.bytes, row.seconds));
  }
  return text;
}

std::string to_json_text(const TraceTables& tables) {
  Json transfers = Json::array();
  for (const TransferRow& row : tables.transfers) {
    transfers.push_back({{"op", row.op},
                         {"for", row.purpose},
                         {"group", row.group},
                         {"ranks", row.ranks},
                         {"bytes", row.bytes},
                         {"count", row.count},
                         {"seconds", row.seconds},
                         {"algorithm_gb_per_second", row.algorithm_rate()},
                         {"bus_gb_per_second", row.bus_rate()}});
  }
  Json units = Json::array();
  for (const UnitRow& unit : tables.units) {
    units.push_back({{"name", unit.name},
                     {"forward_seconds", unit.forward},
                     {"backward_seconds", unit.backward},
                     {"flops", unit.flops > 0.0 ? Json(unit.flops) : Json(nullptr)}});
  }
  Json operations = Json::array();
  for (const OperationRow& row : tables.operations) {
    const auto known = [](double work) { return work > 0.0 ? Json(work) : Json(nullptr); };
    operations.push_back({{"name", row.name},
                          {"sizes", row.sizes.empty() ? Json(nullptr) : Json(row.sizes)},
                          {"count", row.count},
                          {"seconds", row.seconds},
                          {"flops", known(row.flops)},
                          {"bytes", known(row.bytes)}});
  }
  const Json json = {
      {"rank", tables.rank},    {"steps", tables.steps}, {"step_seconds", tables.step_seconds},
      {"transfers", transfers}, {"units", units},        {"operations", operations}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dstrain
