#include "kernels/core/trace_log.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/backend.h"
#include "kernels/core/trace_range.h"

namespace dstrain {
namespace {

std::vector<std::string> names_in(const TraceLog::Track& track) {
  std::vector<std::string> names;
  for (const TraceEvent& event : track.events) {
    names.emplace_back(event.name);
  }
  return names;
}

TEST_CASE("a log has what its threads did while it was recording, and nothing else", "[trace]") {
  TraceLog log;
  { const TraceRange unbound("nobody listens"); }
  const TraceLog::Thread bound(&log, "compute");
  {
    const TraceRange before("before");
    log.start();
  }
  {
    const TraceRange outer("outer", 3);
    const TraceRange inner(std::string("in") + "ner");
    CHECK(TraceLog::recording() == &log);
  }
  std::vector<TraceLog::Track> tracks = log.stop();
  { const TraceRange after("after"); }
  REQUIRE(tracks.size() == 1);
  CHECK(tracks[0].thread == "compute");
  REQUIRE(names_in(tracks[0]) == std::vector<std::string>{"inner", "outer"});
  const TraceEvent& inner = tracks[0].events[0];
  const TraceEvent& outer = tracks[0].events[1];
  CHECK(outer.number == 3);
  CHECK(inner.number == TraceEvent::kNone);
  CHECK(outer.begin_ns <= inner.begin_ns);
  CHECK(inner.begin_ns <= inner.end_ns);
  CHECK(inner.end_ns <= outer.end_ns);
  log.start();
  CHECK(log.stop()[0].events.empty());
}

TEST_CASE("streams have tracks of their own, and those who wait for them say so", "[trace]") {
  TraceLog log;
  const TraceLog::Thread bound(&log, "compute");
  const Backend backend = make_cpu_backend(1);
  const auto side = backend.device->make_side_stream("copies");
  std::vector<float> from(16, 1.0F);
  std::vector<float> to(16);
  const auto tensor = [](std::vector<float>& data) {
    return Tensor(data.data(), DType::kF32, Shape{static_cast<std::int64_t>(data.size())});
  };
  log.start();
  bool go = false;
  side->enqueue([&] {
    while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE)) {
    }
  });
  backend.device->copy(tensor(from), tensor(to), *side);
  backend.ops->cast(tensor(from), tensor(to), backend.device->compute_stream());
  __atomic_store_n(&go, true, __ATOMIC_RELEASE);
  side->synchronize();
  const std::vector<TraceLog::Track> tracks = log.stop();
  REQUIRE(tracks.size() == 2);
  CHECK(tracks[1].thread == "copies");
  REQUIRE(tracks[1].events.size() == 1);
  CHECK(tracks[1].events[0].kind == TraceKind::kOperation);
  CHECK(tracks[1].events[0].name.find("copy") != std::string_view::npos);
  REQUIRE_FALSE(tracks[0].events.empty());
  CHECK(tracks[0].events[0].name.find("cast") != std::string_view::npos);
  for (const TraceEvent& event : tracks[0].events) {
    if (event.kind == TraceKind::kWait) CHECK(event.name == "wait for copies");
  }
}

TEST_CASE("operations tell what they compute and move", "[trace]") {
  TraceLog log;
  const TraceLog::Thread bound(&log, "compute");
  const Backend backend = make_cpu_backend(2);
  Stream& stream = backend.device->compute_stream();
  std::vector<float> numbers(7 * 12 + 7 * 5 + 5 * 12, 1.0F);
  const Tensor x(numbers.data(), DType::kF32, Shape{7, 12});
  const Tensor w(numbers.data() + 84, DType::kF32, Shape{5, 12});
  const Tensor y(numbers.data() + 144, DType::kF32, Shape{7, 5});
  const auto run = [&] {
    backend.ops->linear_forward(x, w, {}, y, stream);
    backend.ops->linear_backward_weight(y, x, w, Write::kAdd, stream);
    backend.ops->linear_forward(x.rows(0, 1), w, {}, y.rows(0, 1), stream);
    backend.ops->add(x, x, x, stream);
  };
  run();
  log.start();
  TraceSpan::add_work({.flops = 1});  // of no operation
  run();
  {
    const TraceSpan whole(TraceKind::kOperation, "of two parts");
    TraceSpan::add_work({.flops = 1, .bytes = 2});
    run();
  }
  const std::vector<TraceLog::Track> tracks = log.stop();
  CHECK_FALSE(TraceSpan::is_recording());
  REQUIRE(tracks[0].events.size() == 9);
  const auto is = [&](std::size_t i, std::int64_t flops, std::int64_t floats, const char* sizes) {
    const TraceEvent& event = tracks[0].events[i];
    INFO(event.name);
    CHECK(event.flops == flops);
    CHECK(event.bytes == 4 * floats);
    CHECK(event.sizes == sizes);
  };
  is(0, 2 * 7 * 5 * 12, 84 + 60 + 35, "7×5×12");
  is(1, 2 * 5 * 12 * 7, 35 + 84 + 2 * 60, "5×12×7");
  is(2, 2 * 5 * 12, 12 + 60 + 5, "1×5×12");
  is(3, 0, 3 * 84, "");
  const TraceEvent& whole = tracks[0].events[8];
  CHECK(whole.flops == 1 + 4 * 7 * 5 * 12 + 2 * 5 * 12);
  CHECK(whole.bytes == 2 + 4 * (179 + 239 + 77 + 252));
}

TEST_CASE("a thread that is bound within another's work belongs to both in turn", "[trace]") {
  TraceLog outer;
  TraceLog inner;
  const TraceLog::Thread bound(&outer, "outer");
  {
    const TraceLog::Thread within(&inner, "inner");
    CHECK(TraceLog::of_this_thread() == &inner);
  }
  CHECK(TraceLog::of_this_thread() == &outer);
  CHECK(inner.stop().empty());
}

}  // namespace
}  // namespace dstrain
