// The agent's protocol: every message survives the way there and back whatever its strings hold,
// and no bytes at all make the reader do more than refuse them.
#include "launcher/agent/agent_protocol.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;

const std::string kAwkward("a b\n\"'$(date)`\\\0\xff\r--", 21);

std::vector<ToAgent> all_to_agent() {
  return {LauncherHello{.patience_ms = 8000, .kill_grace_ms = 5000},
          Start{{.host = "user@w1",
                 .rank = 7,
                 .local_rank = 3,
                 .executable = "/proc/self/exe",
                 .argv = {"dstrain", "", kAwkward},
                 .environment = {{"EMPTY", ""}, {"AWKWARD", kAwkward}},
                 .unset = {"OMP_PLACES"},
                 .cores = {0, 5, 1023},
                 .working_folder = "/a folder"}},
          Signal{7, 15},
          Sweep{},
          AskHost{.number = 9,
                  .question = {.kind = QuestionKind::kConnect,
                               .path = "p",
                               .paths = {"q", kAwkward},
                               .address = "fe80::1",
                               .port = 65535,
                               .timeout_ms = 1500}},
          Bye{.exit_code = 143, .why = "w1 is gone"},
          Heartbeat{}};
}

RankStatus awkward_status() {
  return {.phase = RankPhase::kSaving,
          .in_phase_for = std::chrono::seconds{5},
          .num_steps = 7,
          .waiting_for = std::chrono::seconds{4},
          .groups = {{kAwkward, 9, "barrier (control)", std::chrono::seconds{4}}, {}},
          .process = {'D', std::chrono::seconds{11}, kAwkward}};
}

std::vector<FromAgent> all_from_agent() {
  return {AgentHello{.version = "0.1.0",
                     .build_id = "0123456789abcdef",
                     .hostname = "w1",
                     .address = "10.77.1.2",
                     .pid = 1 << 22,
                     .cores = {0, 1, 2},
                     .num_usable_cores = 2,
                     .available_memory_bytes = std::int64_t{1} << 40,
                     .processor = {.model = kAwkward, .multiplies_bf16 = true, .memory_bytes = 7},
                     .wall_clock_us = -1},
          Started{7, 12345},
          StartFailed{7, kAwkward},
          Output{7, true, kAwkward},
          Dropped{7, std::int64_t{1} << 33, 12},
          Exited{7, 3, 0, "detail"},
          HostAnswered{.number = 9,
                       .answer = {.error = "no",
                                  .address = "10.0.0.1",
                                  .port = 1,
                                  .microseconds = 5,
                                  .files = {{.bytes = 3, .hash = ~0ULL, .error = ""}},
                                  .gpus = {{.model = "a GPU", .total_bytes = 1 << 30}},
                                  .driver = "13.0"}},
          Heartbeat{{{.rank = 7, .status = awkward_status()}}}};
}

/// The frames in these bytes, fed in pieces of `step`.
std::vector<std::string> frames_in(std::string_view bytes, std::size_t step) {
  FrameReader reader;
  std::vector<std::string> frames;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    reader.feed(bytes.substr(at, step), [&](const Frame& frame) {
      frames.push_back(static_cast<char>(frame.type) + std::string(frame.payload));
    });
  }
  return frames;
}

Frame frame_of(const std::string& text) {
  return {.type = static_cast<std::uint8_t>(text.at(0)),
          .payload = std::string_view(text).substr(1)};
}

TEST_CASE("every message arrives as it was sent, in pieces of any size", "[launcher][agent]") {
  std::string to_agent;
  std::string from_agent;
  for (const ToAgent& message : all_to_agent())
    to_agent += encode(message);
  for (const FromAgent& message : all_from_agent())
    from_agent += encode(message);
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, from_agent.size()}) {
    std::string again;
    for (const std::string& frame : frames_in(to_agent, step))
      again += encode(decode_to_agent(frame_of(frame)));
    CHECK((again == to_agent));
    again.clear();
    for (const std::string& frame : frames_in(from_agent, step))
      again += encode(decode_from_agent(frame_of(frame)));
    CHECK((again == from_agent));
  }
}

TEST_CASE("what a rank is started with arrives byte for byte", "[launcher][agent]") {
  const ToAgent sent = all_to_agent()[1];
  const std::string frame = frames_in(encode(sent), 1).at(0);
  const ProcessSpec got = std::get<Start>(decode_to_agent(frame_of(frame))).process;
  const ProcessSpec& want = std::get<Start>(sent).process;
  CHECK(got.argv == want.argv);
  CHECK(got.environment == want.environment);
  CHECK(got.unset == want.unset);
  CHECK(got.cores == want.cores);
  CHECK(got.working_folder == want.working_folder);
}

TEST_CASE("a message that ends too early or too late is refused", "[launcher][agent]") {
  for (const FromAgent& message : all_from_agent()) {
    const std::string frame = frames_in(encode(message), 1).at(0);
    CAPTURE(static_cast<int>(frame[0]));
    for (std::size_t size = 1; size < frame.size(); ++size)
      CHECK_THROWS_AS(decode_from_agent(frame_of(frame.substr(0, size))), ProtocolError);
    CHECK_THROWS_WITH(decode_from_agent(frame_of(frame + "x")),
                      "1 bytes after the end of a message");
  }
  for (const ToAgent& message : all_to_agent()) {
    const std::string frame = frames_in(encode(message), 1).at(0);
    for (std::size_t size = 1; size < frame.size(); ++size)
      CHECK_THROWS_AS(decode_to_agent(frame_of(frame.substr(0, size))), ProtocolError);
    CHECK_THROWS_AS(decode_to_agent(frame_of(frame + "x")), ProtocolError);
  }
}

TEST_CASE("lengths are held against what is there before anything is made of them",
          "[launcher][agent]") {
  // A list of 4 billion environment variables, a string of 4 GiB.
  const std::string four_billion(4, '\xff');
  CHECK_THROWS_WITH(decode_to_agent(frame_of("\x02" + four_billion)),
                    "a value of 4294967295 bytes where 0 bytes are left");
  std::string start = "\x02";
  start += std::string(4, '\0') + std::string(8, '\0') + std::string(4, '\0');  // up to argv
  CHECK_THROWS_WITH(decode_to_agent(frame_of(start + four_billion)),
                    "a list of 4294967295 elements where 0 bytes are left");
  CHECK_THROWS_WITH(decode_from_agent(frame_of(std::string("\x23\0\0\0\0\x02\0\0\0\0", 10))),
                    "a yes or no of 2");
}

TEST_CASE("a frame that will be too long is refused at its header", "[launcher][agent]") {
  FrameReader reader;
  const auto ignore = [](const Frame&) {};
  // 1 MiB is taken, one byte more is not.
  CHECK_NOTHROW(reader.feed(std::string("\x00\x00\x10\x00\x01", 5), ignore));
  FrameReader other;
  CHECK_NOTHROW(other.feed(std::string("\x01\x00\x10\x00", 4), ignore));
  CHECK_THROWS_WITH(other.feed("\x01", ignore),
                    "a message of 1048577 bytes, more than the 1048576 that one may have");
  CHECK_THROWS_AS(FrameReader().feed("HTTP/1.1 400 Bad Request\r\n", ignore), ProtocolError);
  Start large;
  large.process.argv = {std::string(kMaxPayloadBytes, 'x')};
  CHECK_THROWS_AS(encode(ToAgent(large)), ProtocolError);
}

TEST_CASE("messages of no known type, or of the other side, are refused", "[launcher][agent]") {
  CHECK_THROWS_WITH(decode_to_agent(frame_of("\x63")), "a message of unknown type 99");
  CHECK_THROWS_AS(decode_to_agent(frame_of("\x21")), ProtocolError);
  CHECK_THROWS_AS(decode_from_agent(frame_of("\x06")), ProtocolError);
}

TEST_CASE("a hello of another protocol is understood as far as its number", "[launcher][agent]") {
  const std::string hello("\x20\x09\x00\x00\x00 whatever version 9 says", 28);
  const FromAgent message = decode_from_agent(frame_of(hello));
  CHECK(std::get<AgentHello>(message).protocol == 9);
}

// Run by hand after a change of the protocol: agent_protocol_test "[seeds]"
TEST_CASE("writes the seeds of the fuzz target", "[.][seeds]") {
  const std::filesystem::path folder = "tests/fuzz/seeds/agent";
  std::filesystem::create_directories(folder);
  std::ofstream to_agent(folder / "to-agent.bin", std::ios::binary);
  for (const ToAgent& message : all_to_agent())
    to_agent << encode(message);
  std::ofstream from_agent(folder / "from-agent.bin", std::ios::binary);
  for (const FromAgent& message : all_from_agent())
    from_agent << encode(message);
}

}  // namespace
}  // namespace dstrain::launcher
