// Chooses the files for validation: whole files, at random, the same for the same (seed, names).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/input_files.h"

namespace dstrain {

/// One flag per file. Files are drawn in the order of a hash of (seed, name), and taken while they
/// fit into `fraction` of all bytes: never more than that, and a single huge file stays in
/// training.
std::vector<bool> choose_validation(const std::vector<InputFile>& files,
                                    double fraction,
                                    std::uint64_t seed);

}  // namespace dstrain
