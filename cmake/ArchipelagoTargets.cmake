# One helper for libraries, one for programs, one for tests: C++20, warnings, sanitizers, the root include path.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

find_program(_ccache ccache)
if(_ccache)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${_ccache}")
endif()
find_program(_mold mold)

add_library(archipelago_flags INTERFACE)
target_include_directories(archipelago_flags INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(archipelago_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wold-style-cast -Wimplicit-fallthrough -Wswitch-enum)
# FMA contraction changes result bits between machines; merge and codecs promise equal bits.
target_compile_options(archipelago_flags INTERFACE -ffp-contract=off)
if(ARCHIPELAGO_WERROR)
  target_compile_options(archipelago_flags INTERFACE -Werror)
endif()
if(ARCHIPELAGO_SANITIZE STREQUAL "address")
  target_compile_options(archipelago_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(archipelago_flags INTERFACE -fsanitize=address,undefined)
elseif(ARCHIPELAGO_SANITIZE STREQUAL "thread")
  target_compile_options(archipelago_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(archipelago_flags INTERFACE -fsanitize=thread)
endif()
if(ARCHIPELAGO_FUZZ)  # everything is instrumented; tests/fuzz adds libFuzzer's main to its own programs
  target_compile_options(archipelago_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(archipelago_flags INTERFACE -fsanitize=address,undefined)
endif()
if(_mold AND NOT ARCHIPELAGO_FUZZ)
  target_link_options(archipelago_flags INTERFACE -fuse-ld=mold)
endif()

# archipelago_library(name SRCS a.cc b.cc DEPS x y): target archipelago_<name>, alias archipelago::<name>.
function(archipelago_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(archipelago_${name} STATIC ${ARG_SRCS})
    target_link_libraries(archipelago_${name} PUBLIC archipelago_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(archipelago_${name} INTERFACE)
    target_link_libraries(archipelago_${name} INTERFACE archipelago_flags ${ARG_DEPS} ${ARG_PRIVATE_DEPS})
  endif()
  add_library(archipelago::${name} ALIAS archipelago_${name})
endfunction()

# archipelago_program(name SRCS main.cc DEPS x): bin/<name>.
function(archipelago_program name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE archipelago_flags ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES BUILD_RPATH_USE_ORIGIN OFF)
endfunction()

# archipelago_test(name SRCS a_test.cc DEPS x LABELS unit [TIMEOUT s]): one Catch2 v2 executable, each case a ctest test.
function(archipelago_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS} $<TARGET_OBJECTS:archipelago_catch_main>)
  target_link_libraries(${name} PRIVATE archipelago_flags Catch2::Catch2 ${ARG_DEPS})
  target_compile_definitions(${name} PRIVATE
    ARCHIPELAGO_SOURCE_DIR="${CMAKE_SOURCE_DIR}" ARCHIPELAGO_BIN_DIR="${CMAKE_BINARY_DIR}/bin"
    CATCH_CONFIG_ENABLE_BENCHMARKING)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  include(/usr/lib/cmake/Catch2/Catch.cmake OPTIONAL)
  # A name that matches nothing is a failure, not a test that passed.
  catch_discover_tests(${name} TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST EXTRA_ARGS --warn NoTests
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
