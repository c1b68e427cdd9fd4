// A ByteStream to a child: bytes both ways, the end told once and last, nothing left behind.
#include "launcher/process/local_stream.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>

#include "engine/base/file_descriptor.h"
#include "tests/harness/processes.h"

namespace dstrain::launcher {
namespace {

using std::chrono::seconds;

/// The output of a shell script, and how it ends.
struct Listened {
  std::string out;
  std::string err;
  int ends = 0;
  StreamEnd end;
  bool data_after_end = false;

  StreamEvents events() {
    return {.on_data =
                [this](std::string_view bytes) {
                  out += bytes;
                  data_after_end = ends > 0;
                },
            .on_error_data = [this](std::string_view bytes) { err += bytes; },
            .on_closed =
                [this](const StreamEnd& how) {
                  end = how;
                  ++ends;
                }};
  }
};

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

TEST_CASE("a local stream carries stdin, stdout and stderr, and tells the exit code",
          "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, shell("cat; echo behind >&2; exit 3"));
  Listened listened;
  stream.listen(listened.events());
  stream.write("first ");
  stream.write(std::string_view("second\0third", 12));
  stream.close_input();
  stream.write("too late");
  loop.run_for(seconds{20});
  CHECK(listened.out == std::string("first second\0third", 18));
  CHECK(listened.err == "behind\n");
  CHECK(listened.ends == 1);
  CHECK(listened.end.exit_code == 3);
  CHECK_FALSE(listened.data_after_end);
}

TEST_CASE("ten mebibytes pass both ways at once", "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, {"/bin/cat"});
  std::string sent;
  for (int i = 0; sent.size() < 10 << 20; ++i)
    sent += std::to_string(i);
  Listened listened;
  stream.listen(listened.events());
  stream.write(sent);
  CHECK(stream.queued_bytes() == sent.size());
  stream.close_input();
  loop.run_for(seconds{60});
  CHECK(stream.queued_bytes() == 0);
  CHECK((listened.out == sent));
  CHECK(listened.end.exit_code == 0);
}

TEST_CASE("a program that a signal ends is reported with that signal", "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, shell("echo words; kill -9 $$"));
  Listened listened;
  stream.listen(listened.events());
  loop.run_for(seconds{20});
  CHECK(listened.out == "words\n");
  CHECK_FALSE(listened.end.exit_code);
  CHECK(listened.end.signal == SIGKILL);
}

TEST_CASE("writing to a program that does not read ends with its end", "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, shell("exec <&-; sleep 0.1"));
  Listened listened;
  stream.listen(listened.events());
  stream.write(std::string(1 << 20, 'x'));
  loop.run_for(seconds{20});
  CHECK(listened.ends == 1);
  CHECK(listened.end.exit_code == 0);
  CHECK(stream.queued_bytes() == 0);
}

TEST_CASE("close ends the program's input and is followed by its end", "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, {"/bin/cat"});
  Listened listened;
  stream.listen(listened.events());
  stream.close();
  CHECK(listened.ends == 0);
  loop.run_for(seconds{20});
  CHECK(listened.ends == 1);
}

TEST_CASE("a stream that goes away takes its program along, without a word", "[launcher][stream]") {
  asio::io_context loop;
  Listened listened;
  auto stream = std::make_unique<LocalStream>(loop, shell("exec sleep 100"));
  const pid_t pid = stream->pid();
  stream->listen(listened.events());
  stream.reset();
  loop.run_for(seconds{1});
  CHECK_FALSE(testing::is_alive(pid));
  CHECK(listened.ends == 0);
}

TEST_CASE("what a program started in its group goes with it", "[launcher][stream]") {
  asio::io_context loop;
  Listened listened;
  auto stream = std::make_unique<LocalStream>(loop, shell("sleep 100 & echo $!; wait"));
  stream->listen(listened.events());
  while (listened.out.empty())
    loop.run_one();
  const pid_t started = std::stoi(listened.out);
  CHECK(testing::is_alive(started));
  stream.reset();
  CHECK(testing::becomes_true([&] { return !testing::is_alive(started); }, seconds{5}));
}

TEST_CASE("a program's first word is waited for, and not taken", "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, shell("echo a word to you >&2; read go; echo first; cat; exit 3"));
  Listened before;
  int told = 0;
  stream.await_output(before.events(), [&] { ++told; });
  loop.run_for(std::chrono::milliseconds{200});
  CHECK(before.err == "a word to you\n");
  CHECK(told == 0);
  stream.write("go\nsecond\n");
  stream.close_input();
  while (told == 0)
    loop.run_one();
  CHECK(before.out.empty());
  Listened after;
  stream.listen(after.events());
  loop.run_for(seconds{20});
  CHECK(told == 1);
  CHECK(after.out == "first\nsecond\n");
  CHECK(after.end.exit_code == 3);
  CHECK(before.ends == 0);
}

TEST_CASE("a program that ends without a word tells its end alone", "[launcher][stream]") {
  asio::io_context loop;
  const bool is_broken = GENERATE(false, true);
  LocalStream stream(loop, shell(is_broken ? "echo why >&2; exit 255" : "echo why >&2; exit 127"),
                     {.broken_code = 255});
  Listened listened;
  stream.await_output(listened.events(), [] { FAIL("there was no word"); });
  loop.run_for(seconds{20});
  CHECK(listened.err == "why\n");
  CHECK(listened.ends == 1);
  if (is_broken) {
    CHECK_FALSE(listened.end.exit_code);
    CHECK(listened.end.why == "its connection broke");
  } else {
    CHECK(listened.end.exit_code == 127);
  }
}

TEST_CASE("a program reads the file that it is given", "[launcher][stream]") {
  asio::io_context loop;
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() / "input";
  std::ofstream(file) << "of the file";
  LocalStream stream(loop, {"/bin/cat"}, {.input_file = file});
  Listened listened;
  stream.listen(listened.events());
  stream.write("not this");
  loop.run_for(seconds{20});
  CHECK(listened.out == "of the file");
  CHECK(listened.end.exit_code == 0);
  CHECK_THROWS_WITH(LocalStream(loop, {"/bin/cat"}, {.input_file = "/no/such/file"}),
                    Catch::Matchers::Contains("/no/such/file"));
}

TEST_CASE("a program that does not exist is named by the end of its stream", "[launcher][stream]") {
  asio::io_context loop;
  LocalStream stream(loop, {"/no/such/program"});
  Listened listened;
  stream.listen(listened.events());
  loop.run_for(seconds{20});
  CHECK(listened.ends == 1);
  CHECK(listened.end.never_began);
  CHECK(listened.end.why == "/no/such/program: No such file or directory");
}

TEST_CASE("a program gets the variables that it is given, and no file of this process but three",
          "[launcher][stream]") {
  asio::io_context loop;
  const FileDescriptor inherited(open("/dev/null", O_RDONLY));  // not closed by an exec
  REQUIRE(inherited);
  LocalStream stream(loop, shell("echo $DSTRAIN_TEST; ls /proc/$$/fd; true"),
                     {.environment = {{"DSTRAIN_TEST", "a word"}}});
  Listened listened;
  stream.listen(listened.events());
  stream.close_input();
  loop.run_for(seconds{20});
  CHECK(listened.out == "a word\n0\n1\n2\n");
}

TEST_CASE("how a program ended is known where SIGCHLD is ignored", "[launcher][stream]") {
  asio::io_context loop;
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  LocalStream stream(loop, shell("exit 3"));
  Listened listened;
  stream.listen(listened.events());
  loop.run_for(seconds{20});
  std::signal(SIGCHLD, before);
  CHECK(listened.end.exit_code == 3);
}

TEST_CASE("a program leads a session of its own, with every signal as a fresh program has it",
          "[launcher][stream]") {
  asio::io_context loop;
  const auto before = std::signal(SIGTSTP, SIG_IGN);
  LocalStream stream(loop, shell("cut -d' ' -f6 /proc/$$/stat; grep SigIgn /proc/$$/status; true"));
  std::signal(SIGTSTP, before);
  Listened listened;
  stream.listen(listened.events());
  stream.close_input();
  loop.run_for(seconds{20});
  CHECK(listened.out == std::to_string(stream.pid()) + "\nSigIgn:\t0000000000000000\n");
}

}  // namespace
}  // namespace dstrain::launcher
