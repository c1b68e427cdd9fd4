#include "launcher/agent/host_probe.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/network_address.h"
#include "engine/base/scratch_folder.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

/// The reason why no file can be made in `folder`, or in the nearest folder above it that exists;
/// or empty.
std::string objection_to_writing(const fs::path& folder) {
  fs::path existing = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  if (access(existing.c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("cannot write in {}: {}", existing.string(), std::strerror(errno));
}

HostAnswer look_at_folders(const HostQuestion& question) {
  std::error_code error;
  if (!fs::is_directory(question.path, error)) {
    return {.error = fmt::format("working folder {}: {}", question.path,
                                 error ? error.message() : "not a folder")};
  }
  if (access(question.path.c_str(), X_OK) != 0) {
    return {.error = fmt::format("working folder {}: {}", question.path, std::strerror(errno))};
  }
  for (const std::string& path : question.paths) {
    // Relative to where the ranks will run, not to where sshd starts programs.
    const std::string objection = objection_to_writing(fs::path(question.path) / path);
    if (!objection.empty()) return {.error = objection};
  }
  return {};
}

/// Hashes them where `hash_file` is there.
HostAnswer look_at_files(const HostQuestion& question, const HashFile& hash_file) {
  HostAnswer answer;
  for (const std::string& path : question.paths) {
    FileFacts& facts = answer.files.emplace_back();
    const fs::path whole = fs::path(question.path) / path;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(whole, error);
    if (error) {
      facts.error = fmt::format("{}: {}", whole.string(), error.message());
      continue;
    }
    try {
      if (hash_file) facts.hash = hash_file(whole.string());
      facts.bytes = static_cast<std::int64_t>(bytes);
    } catch (const std::exception& failure) {
      facts.error = failure.what();
    }
  }
  return answer;
}

HostAnswer look_at_scratch(const std::string& folder) {
  HostAnswer answer{.error = objection_to_scratch(folder)};
  if (answer.error.empty()) answer.free_bytes = free_bytes_in(folder);
  return answer;
}

}  // namespace

HostProbe::HostProbe(asio::io_context& loop, HashFile hash_file, LookAtGpus look_at_gpus)
    : loop_(loop),
      hash_file_(std::move(hash_file)),
      look_at_gpus_(std::move(look_at_gpus)),
      listener_(loop) {}

void HostProbe::answer(const HostQuestion& question, std::function<void(HostAnswer)> done) {
  try {
    switch (question.kind) {
      case QuestionKind::kFolders:
        return in_thread([question] { return look_at_folders(question); }, std::move(done));
      case QuestionKind::kFiles:
        return in_thread([question, hash = hash_file_] { return look_at_files(question, hash); },
                         std::move(done));
      case QuestionKind::kFileSizes:
        return in_thread([question] { return look_at_files(question, {}); }, std::move(done));
      case QuestionKind::kScratch:
        return in_thread([folder = question.path] { return look_at_scratch(folder); },
                         std::move(done));
      case QuestionKind::kGpus:
        return in_thread(look_at_gpus_, std::move(done));  // a driver may have to wake up
      case QuestionKind::kConnect:
        return connect(question, std::move(done));
      case QuestionKind::kRoute:
        return in_thread(  // may ask a name server
            [question] { return HostAnswer{.address = address_towards(question.address)}; },
            std::move(done));
      case QuestionKind::kInterface:
        return done({.address = address_of_interface(question.path)});
      case QuestionKind::kListen:
        return done(listen(question));
    }
    done({.error = "a question of no known kind"});
  } catch (const PreflightError& error) {
    done({.error = error.what()});
  }
}

HostAnswer HostProbe::listen(const HostQuestion& question) {
  asio::error_code ignored;
  listener_.close(ignored);
  auto [socket, port] = listen_on(question.address, question.port);
  listener_.assign(socket.release());
  listener_.non_blocking(true);
  accept_more();
  return {.port = port};
}

FileDescriptor HostProbe::release_listener() {
  asio::error_code ignored;
  return FileDescriptor(listener_.is_open() ? listener_.release() : -1);
}

/// A peer that connects has learned all that it wanted to know, so the connection is dropped.
void HostProbe::accept_more() {
  listener_.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, alive = std::weak_ptr<const int>(alive_)](const asio::error_code& error) {
        if (error || alive.expired()) return;
        while (FileDescriptor(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC))) {
        }
        accept_more();
      });
}

void HostProbe::connect(const HostQuestion& question, std::function<void(HostAnswer)> done) {
  struct Attempt {
    explicit Attempt(asio::io_context& loop) : names(loop), socket(loop), timer(loop) {}
    asio::ip::tcp::resolver names;
    asio::ip::tcp::socket socket;
    asio::steady_timer timer;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    bool too_late = false;
  };
  // Shared by the handlers: whichever of success, failure and the timer comes first ends it.
  auto attempt = std::make_shared<Attempt>(loop_);
  const auto finish = [attempt, question, done = std::move(done),
                       alive = std::weak_ptr<const int>(alive_)](const asio::error_code& error) {
    if (alive.expired()) return;
    attempt->timer.cancel();
    HostAnswer answer;
    const auto took = std::chrono::steady_clock::now() - attempt->start;
    answer.microseconds = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(took).count());
    if (error) {
      answer.error = fmt::format(
          "cannot connect to {} port {}: {}", question.address, question.port,
          attempt->too_late ? fmt::format("no answer within {} s", question.timeout_ms / 1000.0)
                            : error.message());
    }
    done(std::move(answer));
  };
  attempt->timer.expires_after(std::chrono::milliseconds{question.timeout_ms});
  attempt->timer.async_wait([attempt](const asio::error_code& error) {
    if (error) return;
    attempt->too_late = true;
    attempt->names.cancel();
    asio::error_code ignored;
    attempt->socket.close(ignored);
  });
  attempt->names.async_resolve(
      question.address, std::to_string(question.port),
      [attempt, finish](const asio::error_code& error, const auto& found) {
        if (error || attempt->too_late) {
          return finish(error ? error : asio::error_code(asio::error::timed_out));
        }
        asio::async_connect(
            attempt->socket, found,
            [finish](const asio::error_code& failed, const auto& /*where*/) { finish(failed); });
      });
}

void HostProbe::in_thread(std::function<HostAnswer()> work, std::function<void(HostAnswer)> done) {
  // The thread is detached: one that waits for ever for a dead disk must not keep the agent from
  // ending. It touches nothing but what it owns, and the loop, which the agent leaves only by
  // ending the program.
  std::thread([work = std::move(work), done = std::move(done), &loop = loop_,
               keep = asio::make_work_guard(loop_),
               alive = std::weak_ptr<const int>(alive_)]() mutable {
    HostAnswer answer;
    try {
      answer = work();
    } catch (const std::exception& error) {
      answer.error = error.what();
    }
    asio::post(loop, [done = std::move(done), answer = std::move(answer), alive] {
      if (!alive.expired()) done(answer);
    });
  }).detach();
}

std::string address_towards(const std::string& address) {
  const AddressLookup there = look_up_addresses(address.c_str(), 0);
  if (!there) throw PreflightError(fmt::format("address {}: {}", address, there.error));
  std::string own = own_address_towards(there);
  if (own.empty()) {
    throw PreflightError(fmt::format("no route to {}: {}", address, std::strerror(errno)));
  }
  return own;
}

std::string address_of_interface(const std::string& name) {
  const std::vector<InterfaceAddress> addresses = interface_addresses();
  if (addresses.empty()) {
    throw PreflightError(fmt::format("network interfaces: {}", std::strerror(errno)));
  }
  std::map<std::string, std::string> found;  // by interface name
  for (const InterfaceAddress& one : addresses)
    found.try_emplace(one.name, one.text());
  if (const auto own = found.find(name); own != found.end()) return own->second;
  std::string names;
  for (const auto& [other, address] : found)
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", other, address);
  throw PreflightError(
      fmt::format("there is no network interface {} with an address; there are {}", name, names));
}

}  // namespace dstrain::launcher
