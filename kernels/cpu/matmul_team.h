// How many OpenMP threads the libraries take inside a scope. OpenMP keeps this number for each
// thread that opens parallel regions, so ranks that are threads of one process do not disturb
// one another.
#pragma once

#include <omp.h>

namespace dstrain {

class OpenMpTeam {
 public:
  explicit OpenMpTeam(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  OpenMpTeam(const OpenMpTeam&) = delete;
  OpenMpTeam& operator=(const OpenMpTeam&) = delete;
  ~OpenMpTeam() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace dstrain
