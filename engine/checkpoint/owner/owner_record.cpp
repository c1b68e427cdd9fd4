#include "engine/checkpoint/owner/owner_record.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/random.h>
#include <sys/stat.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMostBytes = 64 << 10;  // ours have some hundred

/// Turns "2026-11-22T16:30:00Z" into "2026-11-22 16:30:00 UTC"; leaves anything else as it is.
std::string readable(std::string time) {
  if (time.size() == 20 && time[10] == 'T' && time.back() == 'Z') {
    time[10] = ' ';
    time.replace(19, 1, " UTC");
  }
  return time;
}

std::string read_all(int fd, std::int64_t bytes) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  std::size_t read = 0;
  while (read < text.size()) {
    const ssize_t count =
        ::pread(fd, text.data() + read, text.size() - read, static_cast<off_t>(read));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      break;
    }
    read += static_cast<std::size_t>(count);
  }
  text.resize(read);
  return text;
}

/// Removes control characters, which must not reach a terminal whoever wrote the file.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      c = '?';
    }
  }
  return text;
}

std::string text_at(const nlohmann::json& object, const char* key) {
  return printable(object.at(key).get<std::string>());
}

}  // namespace

nlohmann::ordered_json to_json(const OwnerRecord& record) {
  nlohmann::ordered_json json = {{"token", record.token},
                                 {"job", record.job},
                                 {"restart", record.restart},
                                 {"role", record.role == OwnerRole::kRank0 ? "rank 0" : "launcher"},
                                 {"host", record.process.host},
                                 {"boot_id", record.process.boot_id},
                                 {"pid_namespace", record.process.pid_namespace},
                                 {"pid", record.process.pid},
                                 {"start_ticks", record.process.start_ticks},
                                 {"user", record.process.user},
                                 {"since", record.since},
                                 {"has_lock", record.has_lock}};
  if (record.end) {
    json["end"] = {{"time", record.end->time}, {"how", record.end->how}};
  }
  return json;
}

std::optional<OwnerRecord> parse_owner_record(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    OwnerRecord record{
        .token = text_at(json, "token"),
        .job = text_at(json, "job"),
        .restart = json.at("restart").get<int>(),
        .role = json.at("role") == "launcher" ? OwnerRole::kLauncher : OwnerRole::kRank0,
        .process = {.host = text_at(json, "host"),
                    .boot_id = text_at(json, "boot_id"),
                    .pid_namespace = text_at(json, "pid_namespace"),
                    .pid = json.at("pid").get<std::int64_t>(),
                    .start_ticks = json.at("start_ticks").get<std::int64_t>(),
                    .user = text_at(json, "user")},
        .since = text_at(json, "since"),
        .has_lock = json.at("has_lock").get<bool>()};
    if (json.contains("end")) {
      record.end = RunEnd{text_at(json.at("end"), "time"), text_at(json.at("end"), "how")};
    }
    return record;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string describe(const OwnerRecord& record) {
  return fmt::format("pid {} on host {} (user {}), there since {}", record.process.pid,
                     record.process.host, record.process.user, readable(record.since));
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
  check(count == static_cast<ssize_t>(bytes.size()), "the kernel gave no random bytes: {}",
        strerror(errno));
  std::string name;
  for (const unsigned char byte : bytes) {
    name += fmt::format("{:02x}", byte);
  }
  return name;
}

std::optional<OwnerFile> open_owner_file(const std::filesystem::path& path) {
  OwnerFile found;
  // O_NONBLOCK, since a blocking open of a FIFO waits for its other end.
  found.file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!found.file) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::nullopt;
    }
    throw StorageError(fmt::format("cannot open {}: {}", path.string(), strerror(errno)));
  }
  struct stat status {};
  if (::fstat(found.file.get(), &status) != 0) {
    throw StorageError(fmt::format("cannot inspect {}: {}", path.string(), strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw StorageError(
        fmt::format("{} is not a regular file, and does not say whom the folder belongs to: "
                    "remove it",
                    path.string()));
  }
  found.device = status.st_dev;
  found.inode = status.st_ino;
  found.beat = status.st_mtim;
  if (status.st_size <= kMostBytes) {
    found.record = parse_owner_record(read_all(found.file.get(), status.st_size));
  }
  return found;
}

}  // namespace dstrain
