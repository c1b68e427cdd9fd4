// OwnerRecord: what owner.json in a run's folder says of the run that the folder belongs to, and
// last-run.json of the last one that ended in an orderly way.
//
// The record is written once, and appears whole by link or rename; what changes is the file's time,
// which the owner renews every few seconds: its heartbeat.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>
#include <sys/types.h>

#include "engine/base/file_descriptor.h"
#include "engine/checkpoint/owner/process_identity.h"

namespace dstrain {

inline constexpr const char* kOwnerFile = "owner.json";
inline constexpr const char* kLastRunFile = "last-run.json";

/// Says who writes: a launcher holds the folder until its rank 0 does.
enum class OwnerRole : std::uint8_t { kRank0, kLauncher };

struct RunEnd {
  std::string time;  ///< UTC, ISO 8601
  std::string how;   ///< "finished at step 400", "failed: …"
  bool operator==(const RunEnd&) const = default;
};

struct OwnerRecord {
  std::string token;  ///< of this record alone, random
  std::string job;    ///< the same in all attempts of one `dstrain launch`
  int restart = 0;    ///< attempts of the job before this one
  OwnerRole role = OwnerRole::kRank0;
  ProcessIdentity process;
  std::string since;            ///< UTC, ISO 8601, by the clock of its host
  bool has_lock = false;        ///< the kernel's, on the file with this record, as long as it lives
  std::optional<RunEnd> end{};  ///< in last-run.json

  bool operator==(const OwnerRecord&) const = default;
};

nlohmann::ordered_json to_json(const OwnerRecord& record);
/// Returns nothing where the text is not such a record.
std::optional<OwnerRecord> parse_owner_record(const std::string& text);

/// "pid 812 on host w0 (user ada), there since 2026-11-22 16:30:00 UTC".
std::string describe(const OwnerRecord& record);

/// Now, in UTC: "2026-11-22T16:30:00Z".
std::string utc_now();
/// A token, or the identity of a job: 16 random bytes in hexadecimal.
std::string random_name();

/// A record's file as it is at this moment.
struct OwnerFile {
  FileDescriptor file;
  std::optional<OwnerRecord> record;  ///< none: damaged
  dev_t device = 0;
  ino_t inode = 0;
  timespec beat{};  ///< when it was last renewed, by the clock that the file system goes by
};
/// Returns nothing where there is no such file. Throws StorageError where it is not a regular file,
/// as a FIFO would be waited for, or cannot be read.
std::optional<OwnerFile> open_owner_file(const std::filesystem::path& path);

}  // namespace dstrain
