// A test that cannot run here, or only in part, says:
//     if (!is_there()) return skip("there is none here");
// Its program prints the reasons at its end, ends with 77 if nothing of it could run, which ctest
// calls skipped, and scripts/test lists all of them last.
#pragma once

#include <string>

namespace dstrain::testing {

/// Called in a test case, on its thread: the case, or the rest of it, cannot be tested.
void skip(const std::string& why);
/// Called anywhere, once per program: what all of its tests leave out, such as "cuda".
void leave_out(const std::string& what, const std::string& why);

/// Whether the build has no `dstrain` for the test to run; says so.
bool no_dstrain_here();

}  // namespace dstrain::testing
