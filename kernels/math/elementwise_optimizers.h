// The optimizers that update each element alone. Each formula is a file with two functions that are
// overloaded, so that the loops of all devices are written once for all of them:
//
//   factors_of(step)                                          what the loop over elements needs
//   update_element(factors, gradient, master, first, second)  one element, or a vector of them; the
//                                                             last three in place
//
// Those with a frozen variance have one more argument and a result (frozen_variance.h).
//
// A new one is such a file, a step in ElementwiseStep and its factors in OptimizerLoops
// (cpu/vector/optimizer_loops.h); without one of them it does not compile.
#pragma once

#include "kernels/math/adagrad.h"
#include "kernels/math/adamw.h"
#include "kernels/math/frozen_variance.h"
#include "kernels/math/lion.h"
#include "kernels/math/rmsprop.h"
#include "kernels/math/sgd.h"
