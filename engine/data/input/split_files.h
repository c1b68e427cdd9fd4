// Chooses at random what is for validation: whole text files, the same for the same (seed, names),
// and single documents of JSON lines, the same for the same (seed, text).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/input/document_digest.h"
#include "engine/data/input/input_files.h"

namespace dstrain {

/// One flag per file, never set for JSON lines. Files are drawn in the order of a hash of (seed,
/// name), and taken while they fit into `fraction` of all bytes of text files: never more than
/// that, and a single huge file stays in training.
std::vector<bool> choose_validation(const std::vector<InputFile>& files,
                                    double fraction,
                                    std::uint64_t seed);

/// Whether a document of JSON lines is for validation: about `fraction` of them are. Two with the
/// same text are always on the same side.
bool is_for_validation(const DocumentDigest& document, double fraction, std::uint64_t seed);

}  // namespace dstrain
