// A trace as files: the times on one axis, both ends of a message, what is joined, what is damaged.
#include "engine/train/trace/trace_file.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/base/storage_error.h"
#include "engine/train/trace/run_trace.h"
#include "engine/train/trace/trace_request.h"
#include "tests/harness/captured_log.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

/// A rank whose clock is a second ahead of rank 0's, and runs 1 µs ahead in each of two seconds.
RankTrace trace_of_rank_1() {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return {.rank = 1,
          .world_size = 2,
          .host = "b",
          .place = "pipeline 1",
          .device = "cpu",
          .steps = {20, 24},
          .first = {.at_ns = 6 * kSecond, .offset_ns = kSecond, .zero_ns = 5 * kSecond},
          .last = {.at_ns = 8 * kSecond, .offset_ns = kSecond + 2000, .zero_ns = 7 * kSecond},
          .tracks = {}};
}

TEST_CASE("times are on rank 0's clock", "[trace]") {
  const RankTrace trace = trace_of_rank_1();
  CHECK(microseconds_of(trace, 6'000'000'000) == Approx(0.0));
  CHECK(microseconds_of(trace, 7'000'000'000) == Approx(999'999.0).epsilon(1e-12));
  CHECK(microseconds_of(trace, 8'000'000'000) == Approx(1'999'998.0).epsilon(1e-12));
}

TEST_CASE("an operation is called as the function that runs it", "[trace]") {
  CHECK(operation_name("virtual void dstrain::CpuOps::norm_forward(const dstrain::NormForward&, "
                       "dstrain::Stream&)") == "norm_forward");
  CHECK(operation_name("void dstrain::CpuOps::sum(T) [with T = std::pair<int, a::b>]") == "sum");
  CHECK(operation_name("cast") == "cast");
}

TEST_CASE("a rank's file has what happened, once, with both ends of a message", "[trace]") {
  RankTrace receiver = trace_of_rank_1();
  const auto at = [](std::int64_t us) { return 6'000'000'000 + us * 1000; };
  const auto event = [&](TraceKind kind, std::string_view name, std::int64_t from,
                         std::int64_t to) {
    return TraceEvent{.kind = kind, .name = name, .begin_ns = at(from), .end_ns = at(to)};
  };
  TraceEvent step = event(TraceKind::kAction, "step", 0, 100);
  step.number = 20;
  TraceEvent sum = event(TraceKind::kCollective, "all_reduce", 20, 30);
  sum.bytes = 4'000'000;
  sum.group = "data-parallel";
  sum.purpose = "gradient";
  sum.ranks = 4;
  TraceEvent got = event(TraceKind::kReceived, "receive", 35, 35);
  got.group = "pipeline";
  got.number = 7;
  got.bytes = 16;
  got.peer = 0;
  TraceEvent outer = event(TraceKind::kOperation, "void A::outer(int)", 10, 15);
  outer.flops = 6'000;
  outer.bytes = 500;
  outer.sizes = "10×20×15";
  receiver.tracks = {{"compute",
                      {event(TraceKind::kOperation, "void A::inner(int)", 12, 14), outer, sum,
                       event(TraceKind::kWait, "wait for \"copies\"", 31, 33), got, step}},
                     {"idle", {}},
                     {"side", {event(TraceKind::kOperation, "void A::copy()", 11, 13)}}};
  const Json json = Json::parse(trace_text(receiver));
  CHECK(json["distributedInfo"] == Json{{"rank", 1}, {"world_size", 2}});
  std::map<std::string, Json> by_name;
  std::vector<std::string> threads;
  for (const Json& one : json["traceEvents"]) {
    CHECK(one["pid"] == 1);
    if (one["name"] == "thread_name") threads.push_back(one["args"]["name"]);
    if (one["name"] == "process_name") CHECK(one["args"]["name"] == "rank 1 (pipeline 1)");
    if (one["ph"] != "M") by_name[one["name"]] = one;
  }
  CHECK(threads == std::vector<std::string>{"compute", "side"});
  CHECK(by_name.size() == 7);
  CHECK(by_name["step"]["args"]["number"] == 20);
  CHECK(by_name["step"]["ts"].get<double>() == Approx(0.0));
  CHECK(by_name["step"]["dur"].get<double>() == Approx(100.0));
  CHECK(by_name["outer"]["cat"] == "kernel");
  CHECK(by_name["outer"]["args"] ==
        Json{{"stream", 0}, {"flops", 6'000}, {"bytes", 500}, {"sizes", "10×20×15"}});
  CHECK(by_name["inner"]["cat"] == "cpu_op");  // its time is outer's
  CHECK(by_name["inner"]["args"].empty());
  CHECK(by_name["step"]["tid"] == 1);  // as the process
  CHECK(by_name["copy"]["tid"] == 1'000'001);
  CHECK(by_name["wait for \"copies\""]["cat"] == "wait");
  const Json& args = by_name["all_reduce"]["args"];
  CHECK(args["bytes"] == 4'000'000);
  CHECK(args["for"] == "gradient");
  CHECK(args["GB/s"].get<double>() == Approx(400.0));
  CHECK(args["bus GB/s"].get<double>() == Approx(600.0));  // 2 · 3/4

  RankTrace sender{.rank = 0, .world_size = 2, .steps = {20, 24}};
  TraceEvent sent = got;
  sent.kind = TraceKind::kSent;
  sent.peer = 1;
  TraceEvent another = sent;
  another.number = 8;
  sender.tracks = {{"compute", {sent, another}}};
  std::vector<Json> ids;
  const Json sent_json = Json::parse(trace_text(sender));
  for (const Json& one : sent_json["traceEvents"]) {
    if (one["ph"] == "s") ids.push_back(one["id"]);
  }
  REQUIRE(ids.size() == 2);
  CHECK(by_name["message"]["ph"] == "f");
  CHECK(ids[0] == by_name["message"]["id"]);
  CHECK(ids[1] != ids[0]);
  CHECK(ids[0].get<std::uint64_t>() < (std::uint64_t{1} << 53U));
}

TEST_CASE("ranks' files become one, and a damaged one is named", "[trace]") {
  const checkpoint_test::ScratchFolder scratch;
  const auto folder = trace_folder(scratch.path(), {20, 24});
  CHECK(folder == scratch.path() / "traces" / "steps-20-24");
  const TraceIndex index{.steps = {20, 24}, .ranks = {0, 1}, .world_size = 2};
  write_trace_index(folder, index);
  RankTrace other = trace_of_rank_1();
  write_rank_trace(folder, other);
  other.rank = 0;
  write_rank_trace(folder, other);
  const TraceIndex read = read_trace_index(folder);
  CHECK(read.steps == index.steps);
  CHECK(read.ranks == index.ranks);
  const auto output = scratch.path() / "both.json";
  join_rank_traces(folder, read, output);
  std::ifstream in(output);
  std::map<int, int> events;
  const Json joined = Json::parse(in);
  for (const Json& event : joined["traceEvents"]) {
    ++events[event["pid"].get<int>()];
  }
  CHECK(events == std::map<int, int>{{0, 3}, {1, 3}});

  std::filesystem::resize_file(folder / rank_file_name(1), 40);
  CHECK_THROWS_WITH(join_rank_traces(folder, read, output),
                    Contains("rank-00001.json.gz is damaged"));
  std::filesystem::remove(folder / rank_file_name(1));
  CHECK_THROWS_AS(join_rank_traces(folder, read, output), StorageError);
  std::ofstream(folder / kTraceIndex) << "[]";
  CHECK_THROWS_WITH(read_trace_index(folder), Contains("does not say which steps"));
}

TEST_CASE("a request is taken once, and what is none is taken away", "[trace]") {
  const checkpoint_test::ScratchFolder folder;
  CHECK_FALSE(take_trace_request(folder.path()));
  ask_for_trace(folder.path(), {.steps = 3, .ranks = {{0, 0}, {2, 5}}});
  const auto request = take_trace_request(folder.path());
  REQUIRE(request);
  CHECK(request->steps == 3);
  CHECK(request->ranks == std::vector<NumberSpan>{{0, 0}, {2, 5}});
  CHECK_FALSE(take_trace_request(folder.path()));
  for (const char* const wrong : {"{", "[]", R"({"steps": "3"})", R"({"steps": 2, "ranks": "x"})",
                                  R"({"steps": 2, "ranks": 3})"}) {
    std::ofstream(folder.path() / TraceRequest::kFile) << wrong;
    INFO(wrong);
    CHECK_FALSE(take_trace_request(folder.path()));
    CHECK_FALSE(std::filesystem::exists(folder.path() / TraceRequest::kFile));
  }
}

TEST_CASE("the steps that are planned and asked for are traced, each by its own folder",
          "[trace]") {
  const testing::CapturedLog told;
  const checkpoint_test::ScratchFolder folder;
  const auto world = make_local_rendezvous(1)[0]->make_group("world", std::vector<int>{0});
  TraceLog log;
  const TraceLog::Thread bound(&log, "compute");
  ask_for_trace(folder.path(), {.steps = 2, .ranks = {}});  // by somebody before this start
  {
    RunTrace trace({.steps = {{3, 4}, {20, 30}}, .ranks = {}}, folder.path(),
                   {.host = "a", .place = "", .device = "cpu"}, *world, &log);
    bool asked = false;
    for (std::int64_t step = 1; step <= 22; ++step) {
      trace.begin_step(step);
      { const TraceSpan span(TraceKind::kAction, "step", step); }
      if (step == 9) ask_for_trace(folder.path(), {.steps = 2, .ranks = {}});
      asked = step == 9 || (step != 9 && trace.is_asked());
      trace.end_step(step, asked);
    }
    trace.end(22);  // in the midst of a trace
  }
  const auto steps_in = [&](const NumberSpan& span) {
    std::vector<std::int64_t> steps;
    const auto path = trace_folder(folder.path(), span) / rank_file_name(0);
    for (const std::string& event : read_rank_events(path)) {
      const Json json = Json::parse(event);
      if (json["name"] == "step") steps.push_back(json["args"]["number"]);
    }
    return steps;
  };
  CHECK(steps_in({3, 4}) == std::vector<std::int64_t>{3, 4});
  CHECK(steps_in({10, 11}) == std::vector<std::int64_t>{10, 11});
  CHECK(steps_in({20, 22}) == std::vector<std::int64_t>{20, 21, 22});
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "traces")) {
    folders += entry.is_directory() ? 1 : 0;
  }
  CHECK(folders == 3);
  CHECK(told.lines_with("are traced on 1 rank") == 3);
}

}  // namespace
}  // namespace dstrain
