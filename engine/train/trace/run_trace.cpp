#include "engine/train/trace/run_trace.h"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/checkpoint/agreement.h"
#include "engine/comm/block_signals.h"

namespace dstrain {
namespace {

bool is_traced(const std::vector<NumberSpan>& ranks, int rank) {
  return ranks.empty() || has_number(ranks, rank);
}

std::vector<int> traced_ranks(const std::vector<NumberSpan>& ranks, int world_size) {
  std::vector<int> traced;
  for (int rank = 0; rank < world_size; ++rank) {
    if (is_traced(ranks, rank)) traced.push_back(rank);
  }
  return traced;
}

}  // namespace

RunTrace::RunTrace(const TraceConfig& config,
                   std::filesystem::path output_dir,
                   Rank rank,
                   Communicator& world,
                   TraceLog* log)
    : output_dir_(std::move(output_dir)), rank_(std::move(rank)), world_(world), log_(log) {
  if (log_ == nullptr) return;
  if (world_.rank() == 0) (void)take_trace_request(output_dir_);  // meant for an earlier start
  for (const NumberSpan& steps : config.steps) {
    windows_.push_back({.steps = steps, .ranks = config.ranks});
  }
}

RunTrace::~RunTrace() {
  if (writing_.valid()) writing_.wait();
}

bool RunTrace::is_asked() {
  constexpr std::chrono::seconds kBetweenLooks{1};
  if (log_ == nullptr || world_.rank() != 0 || open_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kBetweenLooks) return false;
  looked_ = now;
  std::error_code none;
  return std::filesystem::exists(output_dir_ / TraceRequest::kFile, none);
}

void RunTrace::begin_step(std::int64_t step) {
  if (open_) return;
  const auto due = std::find_if(windows_.begin(), windows_.end(),
                                [&](const Window& window) { return window.steps.has(step); });
  if (due != windows_.end()) open(*due, step);
}

void RunTrace::end_step(std::int64_t step, bool asked) {
  if (open_ && step >= open_->window.steps.last) close(step);
  if (asked) obey_request(step);
}

void RunTrace::end(std::int64_t step) {
  if (open_) close(step);
}

void RunTrace::obey_request(std::int64_t step) {
  std::string told;
  if (world_.rank() == 0) {
    if (const auto request = take_trace_request(output_dir_)) {
      told = nlohmann::json{{"steps", request->steps}, {"ranks", to_text(request->ranks)}}.dump();
    }
  }
  told = broadcast_text(told, 0, world_);
  if (told.empty()) return;
  const auto json = nlohmann::json::parse(told);
  windows_.push_back(
      {.steps = {step + 1, step + json.at("steps").get<std::int64_t>()},
       .ranks =
           parse_spans(json.at("ranks").get<std::string>()).value_or(std::vector<NumberSpan>())});
}

void RunTrace::open(const Window& window, std::int64_t step) {
  if (writing_.valid()) writing_.wait();
  open_ = {.window = window, .clock = {}};
  open_->window.steps.first = step;
  if (world_.rank() == 0) {
    std::error_code ignored;  // of a trace of the same steps, by an earlier start
    std::filesystem::remove_all(trace_folder(output_dir_, open_->window.steps), ignored);
  }
  open_->clock = compare_clocks(world_);
  if (!is_traced(window.ranks, world_.rank())) return;
  for (const std::string& reason : log_->start())
    spdlog::warn("the trace of steps {}: {}", to_text({open_->window.steps}), reason);
}

void RunTrace::close(std::int64_t step) {
  std::vector<TraceLog::Track> tracks = log_->stop();
  Open done = std::move(*open_);
  open_.reset();
  done.window.steps.last = step;
  const ClockReading clock = compare_clocks(world_);
  std::erase_if(windows_, [&](const Window& window) { return window.steps.last <= step; });
  const std::filesystem::path folder = trace_folder(output_dir_, done.window.steps);
  const bool writes = is_traced(done.window.ranks, world_.rank());
  for (const TraceLog::Track& track : tracks) {
    if (track.left_out > 0) {
      spdlog::warn(
          "the trace of steps {} lacks the last {} events of thread \"{}\", which keeps {}: "
          "trace fewer steps",
          to_text({done.window.steps}), track.left_out, track.thread, TraceLog::kMostEvents);
    }
  }
  TraceIndex index;
  if (world_.rank() == 0) {
    index = {.steps = done.window.steps,
             .ranks = traced_ranks(done.window.ranks, world_.size()),
             .world_size = world_.size()};
    spdlog::info("steps {} are traced on {}, in {}: dstrain trace joins the ranks' files",
                 to_text({done.window.steps}), counted(std::ssize(index.ranks), "rank"),
                 folder.string());
  }
  const BlockSignals block;  // they are for the thread that ends a step
  try {
    writing_ = std::async(std::launch::async, [folder, writes, index = std::move(index),
                                               trace = RankTrace{.rank = world_.rank(),
                                                                 .world_size = world_.size(),
                                                                 .host = rank_.host,
                                                                 .place = rank_.place,
                                                                 .device = rank_.device,
                                                                 .steps = done.window.steps,
                                                                 .first = done.clock,
                                                                 .last = clock,
                                                                 .tracks = std::move(tracks)}] {
      try {
        if (trace.rank == 0) write_trace_index(folder, index);
        if (writes) write_rank_trace(folder, trace);
      } catch (const std::exception& error) {
        spdlog::warn("the trace of steps {} is lost: {}", to_text({trace.steps}), error.what());
      }
    });
  } catch (const std::system_error& error) {  // no thread to be had
    spdlog::warn("the trace of steps {} is lost: {}", to_text({done.window.steps}), error.what());
  }
}

}  // namespace dstrain
