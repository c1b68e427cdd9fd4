#include "cmd/exit_codes.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tcp_store.h"
#include "engine/config/config_error.h"
#include "engine/data/disk_error.h"
#include "engine/train/run_training.h"
#include "launcher/process/errors.h"
#include "launcher/process/task_limits.h"

namespace dstrain {
namespace {

constexpr std::array<std::pair<int, std::string_view>, 12> kMeanings = {{
    {kExitInternal, "internal error"},
    {kExitUsage, "command line, config or a file they name is wrong"},
    {kExitPreflight, "the job cannot run here"},
    {kExitRendezvous, "not all ranks arrived in time"},
    {kExitCheckpoint, "checkpoint unusable"},
    {kExitStorage, "writing failed"},
    {kExitNumerical, "loss or gradients not finite"},
    {kExitHang, "the job stood still"},
    {kExitNoProgress, "restarts without progress"},
    {kExitCorruption, "memory changed by itself"},
    {kExitPeerLost, "a peer was lost"},
    {127, "the program could not be started"},
}};

/// Joins the lines into one, since only the last line of a rank is kept as its last words.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

/// Whether writing a command's output, or a log of the launcher, was refused. Code that reads
/// throws errors of its own.
bool is_refused_write(const std::error_code& code) {
  using std::errc;
  return code == errc::no_space_on_device || code == errc::file_too_large ||
         code == errc::read_only_file_system || code == errc::io_error ||
         code == errc::permission_denied ||
         code == std::error_code(EDQUOT, std::generic_category());
}

}  // namespace

std::string describe_exit_code(int code) {
  for (const auto& [known, meaning] : kMeanings) {
    if (known == code) return std::string(meaning);
  }
  return {};
}

Failure describe_current_exception() {
  const auto failure = [](int code, const std::exception& error) {
    return Failure{code, one_line(error.what())};
  };
  try {
    throw;
  } catch (const ConfigError& error) {
    // Several problems stand on a line each.
    if (error.problems().size() > 1) return {kExitUsage, error.what()};
    return failure(kExitUsage, error);
  } catch (const launcher::HostfileError& error) {
    return failure(kExitUsage, error);
  } catch (const launcher::UsageError& error) {
    return failure(kExitUsage, error);
  } catch (const launcher::PreflightError& error) {
    return failure(kExitPreflight, error);
  } catch (const PortInUse& error) {
    return failure(kExitPreflight, error);
  } catch (const FolderInUse& error) {
    return failure(kExitPreflight, error);
  } catch (const RendezvousError& error) {
    return failure(kExitRendezvous, error);
  } catch (const CheckpointError& error) {
    return failure(kExitCheckpoint, error);
  } catch (const StorageError& error) {
    return failure(kExitStorage, error);
  } catch (const FolderGone& error) {
    return failure(kExitStorage, error);
  } catch (const DiskError& error) {
    return failure(kExitStorage, error);
  } catch (const std::filesystem::filesystem_error& error) {
    return failure(kExitStorage, error);
  } catch (const NumericalError& error) {
    return failure(kExitNumerical, error);
  } catch (const StateCorrupted& error) {
    return failure(kExitCorruption, error);
  } catch (const Timeout& error) {
    return failure(kExitHang, error);
  } catch (const PeerLost& error) {
    return failure(kExitPeerLost, error);
  } catch (const std::bad_alloc&) {
    return {kExitInternal, "out of memory"};
  } catch (const std::system_error& error) {
    if (is_refused_write(error.code())) return failure(kExitStorage, error);
    Failure one = failure(kExitInternal, error);
    if (error.code() == std::errc::resource_unavailable_try_again &&
        one.message.find(" allows ") == std::string::npos) {
      one.message += "; a thread or process could not be made" + launcher::describe_task_limits();
    }
    return one;
  } catch (const std::exception& error) {
    return failure(kExitInternal, error);
  } catch (...) {
    return {kExitInternal, "an exception of unknown type"};
  }
}

}  // namespace dstrain
