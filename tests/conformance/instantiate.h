// Runs a suite of tests on every backend that was chosen.
#pragma once

#include "backend_spec.h"
#include "fixture.h"

#define SH_ON_EVERY_BACKEND(suite)                                                                     \
    INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(::conformance::chosen_specs()),        \
                             [](const testing::TestParamInfo<::conformance::BackendSpec>& parameter) { \
                                 return ::conformance::test_name(parameter.param);                     \
                             })
