// ResumeRecord: OUTPUT/prepare.resume, which says how far an interrupted prepare-data came, and
// with which input and settings. It is replaced by a rename after what it describes is on the disk
// (document_sink.h), and removed once all files have their names.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "engine/data/document_sink.h"
#include "engine/data/input/input_reader.h"
#include "engine/data/prepare_summary.h"

namespace dstrain {

struct ResumeRecord {
  /// The flags that decide the output, and their values as text.
  std::map<std::string, std::string> settings;
  /// A hash of the files read so far (names, sizes, times of their last change, how they are read,
  /// which split they go to). The files after them may change.
  std::string files;
  InputPosition position{};
  std::int64_t lines = 0;           ///< of the file at `position`, before it
  bool is_inside_document = false;  ///< a text file of which a part was read
  std::int64_t bytes_done = 0;      ///< of the input on the disk
  bool is_publishing = false;       ///< all is done, and the files are getting their names
  DocumentSink::Kept kept{};
  PrepareSummary counts{};  ///< what was left out, and the seconds so far; of the rest nothing
};

/// The path of the record.
std::string resume_record_path(const std::string& folder);
/// Returns nothing if there is none. Throws ConfigError if it cannot be read.
std::optional<ResumeRecord> read_resume_record(const std::string& folder);
/// Throws DiskError.
void write_resume_record(const ResumeRecord& record, const std::string& folder);
void remove_resume_record(const std::string& folder);
/// Where a call was killed while the files got their names, takes the names back, so that the next
/// one resumes from there.
void take_back_names(const std::string& folder);

/// Throws ConfigError that names the first setting in which `now` differs from the record.
void check_same_settings(const ResumeRecord& record,
                         const std::map<std::string, std::string>& now,
                         const std::string& folder);

}  // namespace dstrain
