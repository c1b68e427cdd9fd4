#include "cmd/watch/watch_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/report/report_parts.h"
#include "engine/base/amount_text.h"
#include "launcher/supervision/screen_text.h"

namespace dstrain {
namespace {

constexpr int kLabel = 12;  // columns of a line's name

std::string cut(std::string_view text, int columns) {
  std::string kept;
  int used = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
    if (begins && ++used > columns) break;
    kept += c;
  }
  return kept;
}

std::string repeated(std::string_view sign, long count) {
  std::string text;
  for (long i = 0; i < count; ++i)
    text += sign;
  return text;
}

/// Keeps what fits into the columns.
PageLine fitted(PageLine line, int columns) {
  for (StyledText& part : line) {
    part.text = cut(launcher::without_controls(part.text), std::max(0, columns));
    columns -= columns_taken(part.text);
  }
  std::erase_if(line, [](const StyledText& part) { return part.text.empty(); });
  return line;
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} µs", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

Style style_of_state(const std::string& word) {
  if (word == "running" || word == "finished") return Style::kGood;
  if (word == "failed" || word == "died") return Style::kBad;
  return Style::kWarning;
}

StyledText label(std::string_view name) {
  return {fmt::format(" {:<{}}", name, kLabel), Style::kDim};
}

std::optional<double> now(const WatchedRun& run, const char* path) {
  return number_at(run.overview.last_line, path);
}

PageLine head_line(const WatchedRun& run) {
  const std::string word = run_word(run.overview);
  PageLine line = {{" " + run.overview.status.folder.string() + "  ", Style::kBold},
                   {word, style_of_state(word)}};
  if (const std::string more = last_word(run.overview); !more.empty()) {
    line.push_back(
        {(more.starts_with(word) ? "  " : ", ") +
             (more.starts_with(word) ? more.substr(word.size() + (more.size() > word.size()))
                                     : more),
         Style::kDim});
  }
  return line;
}

PageLine progress_line(const WatchedRun& run, int columns, const Signs& signs) {
  const std::int64_t step = run.overview.step();
  if (!run.overview.total_steps || *run.overview.total_steps < 1) {
    return {label("step"), {grouped(step), Style::kBold}};
  }
  const std::int64_t total = *run.overview.total_steps;
  const double share = std::min(1.0, static_cast<double>(step) / static_cast<double>(total));
  const std::string count = fmt::format("{} of {}  ", grouped(step), grouped(total));
  std::string rest = fmt::format("  {:.1f} %", 100.0 * share);
  const auto left = run.seconds_left();
  if (left && *left > 0.0 && run_word(run.overview) == "running") {
    rest += fmt::format("   {} left", clock_text(*left));
  }
  const int width =
      std::clamp(columns - kLabel - 2 - columns_taken(count) - columns_taken(rest), 0, 60);
  const long full = std::lround(share * width);
  return {label("step"),
          {count, Style::kBold},
          {repeated(signs.full, full), Style::kFirst},
          {repeated(signs.empty, width - full), Style::kDim},
          {rest, Style::kPlain}};
}

PageLine curve_line(const char* name,
                    const std::vector<double>& values,
                    int columns,
                    const Signs& signs) {
  const std::string last = fmt::format("{:<9.4f} ", values.back());
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const std::string range = fmt::format("  {:.4f} to {:.4f}", *most, *least);
  const int width = std::min(60, columns - kLabel - 2 - columns_taken(last) - columns_taken(range));
  return {label(name),
          {last, Style::kBold},
          {sparkline(values, width, signs), Style::kFirst},
          {range, Style::kDim}};
}

void add_part(std::string& text, const std::string& part) {
  text += (text.empty() ? "" : "   ") + part;
}

PageLine speed_line(const WatchedRun& run) {
  std::string text;
  if (const auto rate = now(run, "tokens_per_second")) {
    add_part(text, grouped(std::llround(*rate)) + " tokens/s");
  }
  if (run.account) {
    add_part(text,
             time_text(run.account->wall / static_cast<double>(run.account->steps())) + " a step");
  }
  if (const auto share = now(run, "model_flops_utilization")) {
    add_part(text, fmt::format("{:.1f} % of peak", 100.0 * *share));
  }
  return {label("speed"), {text, Style::kPlain}};
}

PageLine update_line(const WatchedRun& run) {
  std::string text;
  if (const auto rate = now(run, "lr")) add_part(text, fmt::format("rate {:.3g}", *rate));
  if (const auto norm = now(run, "grad_norm"))
    add_part(text, fmt::format("gradient norm {:.3g}", *norm));
  if (const auto scale = now(run, "loss_scale"); scale && *scale != 1.0) {
    add_part(text, fmt::format("loss scale {:g}", *scale));
  }
  PageLine line = {label("update"), {text, Style::kPlain}};
  if (now(run, "skipped").value_or(0.0) > 0.0) line.push_back({"   skipped", Style::kWarning});
  return line;
}

/// Where the last steps' time went: computing, what travels, and waiting.
PageLine time_line(const StepAccount& account, int columns, const Signs& signs) {
  const double sent =
      std::accumulate(account.communication.begin(), account.communication.end(), 0.0);
  const double waits = account.pipeline + account.straggler + account.data;
  const double pauses = account.checkpoint + account.evaluation;
  struct Part {
    const char* name;
    double seconds;
    Style style;
  };
  const std::vector<Part> parts = {{"computing", account.compute, Style::kFirst},
                                   {"communicating", sent, Style::kSecond},
                                   {"waiting", waits, Style::kThird},
                                   {"saving, evaluating", pauses, Style::kWarning}};
  const int width = std::clamp(columns - kLabel - 60, 0, 24);
  PageLine line = {label("time")};
  PageLine words;
  for (const Part& part : parts) {
    const double share = account.wall > 0.0 ? part.seconds / account.wall : 0.0;
    if (share < 0.005) continue;
    line.push_back({repeated(signs.full, std::lround(share * width)), part.style});
    words.push_back({fmt::format("  {} {:.0f} %", part.name, 100.0 * share), part.style});
  }
  line.insert(line.end(), words.begin(), words.end());
  return line;
}

PageLine memory_line(const WatchedRun& run) {
  std::string text;
  const auto bytes = [&](const char* path) {
    return static_cast<std::int64_t>(now(run, path).value_or(0.0));
  };
  if (const std::int64_t peak = bytes("memory_bytes.peak"); peak > 0) {
    text = fmt::format("{} at most on a rank; {} planned and {} beside it", size_text(peak),
                       size_text(bytes("memory_bytes.planned")),
                       size_text(bytes("memory_bytes.overhead")));
  }
  return {label("memory"), {text, Style::kPlain}};
}

PageLine checkpoint_line(const WatchedRun& run) {
  const RunStatus& status = run.overview.status;
  if (status.checkpoint.empty()) {
    return {label("checkpoint"),
            {status.checkpoint_fault.empty() ? "none yet" : status.checkpoint_fault,
             status.checkpoint_fault.empty() ? Style::kDim : Style::kWarning}};
  }
  return {label("checkpoint"),
          {fmt::format("step {}, {} ago", grouped(status.checkpoint_step),
                       clock_text(status.checkpoint_age_s)),
           Style::kPlain}};
}

/// A rank, or the mean of a host's ranks, in the table.
struct TableRow {
  std::string name;
  std::string host;
  double computing = 0.0;
  double waiting = 0.0;
  double data = 0.0;
  double peak_bytes = 0.0;
};

std::vector<TableRow> rows_of_ranks(const WatchedRun& run) {
  const std::size_t count = run.ranks.computing.size();
  std::vector<TableRow> rows(count);
  const std::vector<RunStart>& starts = run.overview.starts;
  for (std::size_t rank = 0; rank < count; ++rank) {
    TableRow& row = rows[rank];
    row.name = fmt::format("{}", rank);
    if (!starts.empty() && rank < starts.back().hosts.size()) row.host = starts.back().hosts[rank];
    row.computing = run.ranks.computing[rank];
    row.data = run.ranks.data[rank];
    for (const auto& [whom, seconds] : run.ranks.waiting_for)
      row.waiting += seconds[rank];
    if (rank < run.peak_bytes.size()) row.peak_bytes = run.peak_bytes[rank];
  }
  return rows;
}

/// A row a host, in the order of their first ranks: means, and the most memory.
std::vector<TableRow> rows_of_hosts(const std::vector<TableRow>& ranks) {
  std::vector<TableRow> rows;
  std::map<std::string, std::size_t> at;
  std::vector<double> counts;
  for (const TableRow& rank : ranks) {
    const auto [found, is_new] = at.emplace(rank.host, rows.size());
    if (is_new) {
      rows.push_back({.name = "", .host = rank.host});
      counts.push_back(0.0);
    }
    TableRow& row = rows[found->second];
    counts[found->second] += 1.0;
    row.computing += rank.computing;
    row.waiting += rank.waiting;
    row.data += rank.data;
    row.peak_bytes = std::max(row.peak_bytes, rank.peak_bytes);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].name = fmt::format("{:.0f}", counts[i]);
    rows[i].computing /= counts[i];
    rows[i].waiting /= counts[i];
    rows[i].data /= counts[i];
  }
  return rows;
}

/// The table of ranks or, where they do not fit, of hosts; of these, where they do not fit either,
/// those that compute longest.
void add_table(
    const WatchedRun& run, int columns, int rows, const Signs& signs, std::vector<PageLine>& page) {
  std::vector<TableRow> table = rows_of_ranks(run);
  const bool by_host = static_cast<int>(table.size()) > rows - 1;
  if (table.empty() || rows < 3) return;
  if (by_host) table = rows_of_hosts(table);
  const std::size_t shown = std::min<std::size_t>(table.size(), static_cast<std::size_t>(rows - 1));
  const std::size_t left_out = table.size() - shown;
  if (left_out > 0) {
    std::stable_sort(table.begin(), table.end(), [](const TableRow& a, const TableRow& b) {
      return a.computing > b.computing;
    });
    table.resize(shown);
  }
  double longest = 1e-9;
  std::size_t widest = 4;
  for (const TableRow& row : table) {
    longest = std::max(longest, row.computing + row.waiting + row.data);
    widest = std::max(widest, row.host.size());
  }
  widest = std::min<std::size_t>(widest, 24);
  const int width = std::clamp(columns - 54 - static_cast<int>(widest), 0, 30);
  page.push_back(
      {{fmt::format(" {:<6}{:<{}}  {:<{}}{:>10}{:>10}{:>10}{:>12}{}", by_host ? "RANKS" : "RANK",
                    "HOST", widest, "", width, "COMPUTING", "WAITING", "DATA", "MEMORY",
                    left_out > 0 ? fmt::format("  ({} faster hosts are left out)", left_out)
                                 : std::string()),
        Style::kDim}});
  for (const TableRow& row : table) {
    const auto columns_for = [&](double seconds) { return std::lround(seconds / longest * width); };
    const long computing = columns_for(row.computing);
    const long waiting = columns_for(row.waiting);
    const long data = std::min<long>(columns_for(row.data), width - computing - waiting);
    page.push_back(
        {{fmt::format(" {:<6}{:<{}}  ", row.name, cut(row.host, static_cast<int>(widest)), widest)},
         {repeated(signs.full, computing), Style::kFirst},
         {repeated(signs.full, waiting), Style::kSecond},
         {repeated(signs.full, data), Style::kThird},
         {repeated(" ", std::max<long>(0, width - computing - waiting - std::max<long>(0, data)))},
         {fmt::format("{:>10}", time_text(row.computing)), Style::kFirst},
         {fmt::format("{:>10}", time_text(row.waiting)), Style::kSecond},
         {fmt::format("{:>10}", time_text(row.data)), Style::kThird},
         {row.peak_bytes > 0.0
              ? fmt::format("{:>12}", size_text(static_cast<std::int64_t>(row.peak_bytes)))
              : std::string()}});
  }
}

}  // namespace

int columns_taken(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

std::string sparkline(const std::vector<double>& values, int columns, const Signs& signs) {
  constexpr double kLevels = 8.0;
  const std::size_t count = std::min(values.size(), static_cast<std::size_t>(std::max(0, columns)));
  std::vector<double> means;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * values.size() / count;
    const std::size_t end = (i + 1) * values.size() / count;
    double sum = 0.0;
    for (std::size_t at = begin; at < end; ++at)
      sum += values[at];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  double least = 1e300;
  double most = -1e300;
  for (const double mean : means) {
    if (!std::isfinite(mean)) continue;
    least = std::min(least, mean);
    most = std::max(most, mean);
  }
  std::string text;
  for (const double mean : means) {
    if (!std::isfinite(mean)) {
      text += "!";
      continue;
    }
    const double share = most > least ? (mean - least) / (most - least) : 0.0;
    const auto level = static_cast<std::size_t>(std::min(kLevels - 1.0, share * kLevels));
    const auto bytes = static_cast<std::size_t>(signs.curve_bytes);
    text += signs.curve.substr(level * bytes, bytes);
  }
  return text;
}

std::vector<PageLine> watch_page(const WatchedRun& run, int columns, int rows, const Signs& signs) {
  std::vector<PageLine> page = {head_line(run)};
  if (!run.overview.starts.empty()) {
    const RunStart& start = run.overview.starts.back();
    page.push_back({{fmt::format(" {}; {}", layout_text(start), start.device), Style::kDim}});
  }
  page.emplace_back();
  page.push_back(progress_line(run, columns, signs));
  if (!run.losses.empty()) page.push_back(curve_line("loss", run.losses, columns, signs));
  if (!run.validations.empty()) {
    page.push_back(curve_line("validation", run.validations, columns, signs));
  }
  if (!run.overview.last_line.is_null()) {
    page.push_back(update_line(run));
    page.push_back(speed_line(run));
    if (run.account) page.push_back(time_line(*run.account, columns, signs));
    page.push_back(memory_line(run));
  }
  page.push_back(checkpoint_line(run));
  page.emplace_back();
  add_table(run, columns, rows - static_cast<int>(page.size()), signs, page);
  if (static_cast<int>(page.size()) > rows)
    page.resize(static_cast<std::size_t>(std::max(0, rows)));
  for (PageLine& line : page) {
    line = fitted(std::move(line), columns);
  }
  return page;
}

std::string watch_line(const WatchedRun& run) {
  std::string text = fmt::format("step {}", run.overview.step());
  if (run.overview.total_steps) text += fmt::format("/{}", *run.overview.total_steps);
  const auto add = [&](const std::string& part) { text += "  " + part; };
  if (const auto loss = now(run, "loss")) add(fmt::format("loss {:.4f}", *loss));
  if (run.overview.validation_loss)
    add(fmt::format("validation {:.4f}", *run.overview.validation_loss));
  if (const auto rate = now(run, "tokens_per_second")) {
    add(grouped(std::llround(*rate)) + " tokens/s");
  }
  const auto left = run.seconds_left();
  if (left && *left > 0.0) add(clock_text(*left) + " left");
  return text;
}

}  // namespace dstrain
