#include "cmd/exit_codes.h"

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/comm/communicator.h"
#include "engine/config/config_error.h"
#include "engine/train/run_training.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

template <typename Error>
int code_of(const Error& error) {
  try {
    throw error;
  } catch (...) {
    return describe_current_exception().exit_code;
  }
}

// The numbers are a promise to scripts; they are written out here on purpose.
TEST_CASE("every kind of error has the exit code of the table", "[cmd]") {
  CHECK(code_of(std::runtime_error("x")) == 1);
  CHECK(code_of(std::bad_alloc()) == 1);
  CHECK(code_of(42) == 1);
  CHECK(code_of(ConfigError("x")) == 2);
  CHECK(code_of(launcher::HostfileError("x")) == 2);
  CHECK(code_of(launcher::PreflightError("x")) == 3);
  CHECK(code_of(RendezvousError("x")) == 4);
  CHECK(code_of(CheckpointError("x")) == 5);
  CHECK(code_of(FolderInUse("x")) == 3);
  CHECK(code_of(StorageError("x")) == 6);
  CHECK(code_of(FolderGone("x")) == 6);
  CHECK(code_of(std::filesystem::filesystem_error("x", std::error_code())) == 6);
  CHECK(code_of(NumericalError("x")) == 7);
  CHECK(code_of(StateCorrupted("x")) == 10);
  CHECK(code_of(Timeout("x")) == 8);
  CHECK(code_of(PeerLost("x")) == 14);
}

TEST_CASE("a message is one line", "[cmd]") {
  try {
    throw ConfigError("a\nb");
  } catch (...) {
    CHECK(describe_current_exception().message == "a b");
  }
}

}  // namespace
}  // namespace dstrain
