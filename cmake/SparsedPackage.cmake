# What is installed and what travels. Components:
#   server              the server, and the kernels that others use as well
#   client              the command line client
#   c_interface         the libraries for programs in C and other languages (client/c)
#   c_development       what such programs are built with: header, pkg-config files, .proto
#   development         the C++ library, its headers, examples; with those above what `cmake --install`
#                       installs
#   measurement         the GPU tests and the bench
#   libraries           copies of the shared libraries that a stock Debian or Ubuntu lacks
# The tarball has all but `development`. Of the .deb packages each component but `libraries` is one, the
# two of development together; they depend on Debian's libraries. `cpack --preset release` makes both, of
# what was built: target `programs`. DebianFiles.cmake adds what only Debian's packages have.

# Next to nobody else's libraries, should someone unpack the tarball over /usr/local.
set(SPARSED_LIBRARIES_DIR ${CMAKE_INSTALL_LIBDIR}/sparsed)
file(RELATIVE_PATH libraries_from_bin
  ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/sparsed)
add_custom_target(programs)

# sparsed_install_program(TARGET COMPONENT): installs a program and has it find the copied libraries,
# wherever it is unpacked.
function(sparsed_install_program target component)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_bin}")
  # As RPATH, not RUNPATH, which would not reach the libraries' own dependencies.
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  set(optional "")
  if(component STREQUAL measurement)
    set(optional EXCLUDE_FROM_ALL)
    set_property(GLOBAL PROPERTY SPARSED_MEASURES ON)
  endif()
  install(TARGETS ${target}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component} ${optional})
  add_dependencies(programs ${target})
  set_property(GLOBAL APPEND PROPERTY SPARSED_PROGRAMS ${target})
endfunction()

# sparsed_install_library(TARGET COMPONENT): installs a shared library of ours where programs find the
# copied ones. It has no version of its own: programs link with it through sparsed::attached, and are
# built anew with each release.
function(sparsed_install_library target component)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  string(REGEX REPLACE "^sparsed_" "" name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT sparsedTargets
    LIBRARY DESTINATION ${SPARSED_LIBRARIES_DIR} COMPONENT ${component})
  set_property(GLOBAL APPEND PROPERTY SPARSED_LIBRARIES ${target})
endfunction()

# The libraries of every program that was installed so far, and CPack.
function(sparsed_package)
  get_property(installed GLOBAL PROPERTY SPARSED_PROGRAMS)
  list(TRANSFORM installed REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  get_property(own_libraries GLOBAL PROPERTY SPARSED_LIBRARIES)
  list(TRANSFORM own_libraries REPLACE "(.+)" "$<TARGET_FILE_NAME:\\1>" OUTPUT_VARIABLE own_names)
  set(own_folders "")
  foreach(library ${own_libraries})
    get_target_property(folder ${library} BINARY_DIR)
    list(APPEND own_folders ${folder})
  endforeach()
  # The CUDA runtime is in the kernels' library; NVIDIA's archives and its wheels keep its licence apart.
  file(GLOB cuda_licence ${CUDAToolkit_LIBRARY_ROOT}/EULA.txt
    ${CUDAToolkit_LIBRARY_ROOT}/dist-info/nvidia_cuda_runtime-*/licenses/License.txt)
  install(CODE "
    set(programs \"${installed}\")
    set(own_libraries \"${own_names}\")
    set(libraries_dir \"${SPARSED_LIBRARIES_DIR}\")
    set(notices_dir \"${CMAKE_INSTALL_DOCDIR}/notices\")
    set(cuda_licence \"${cuda_licence}\")"
    COMPONENT libraries EXCLUDE_FROM_ALL)
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallLibraries.cmake
    COMPONENT libraries EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md
    DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT server)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/grafana ${PROJECT_SOURCE_DIR}/deploy/prometheus
    DESTINATION ${CMAKE_INSTALL_DATADIR}/sparsed COMPONENT server)
  # Where systemd looks under /usr and /usr/local, whatever libraries' folder is.
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/sparsed.service
    DESTINATION lib/systemd/system COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/sparsed.sysusers
    DESTINATION lib/sysusers.d RENAME sparsed.conf COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/sparsed-gpu.conf
    DESTINATION ${CMAKE_INSTALL_DATADIR}/sparsed/systemd COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/sparsed.yaml
    DESTINATION ${CMAKE_INSTALL_DATADIR}/sparsed COMPONENT server)
  # The selector's models, and the program that trains others.
  if(EXISTS ${PROJECT_SOURCE_DIR}/engine/planning/models)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine/planning/models
      DESTINATION ${CMAKE_INSTALL_DATADIR}/sparsed COMPONENT server)
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/tools/train)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/train
      DESTINATION ${CMAKE_INSTALL_DATADIR}/sparsed COMPONENT server USE_SOURCE_PERMISSIONS
      PATTERN __pycache__ EXCLUDE PATTERN papers EXCLUDE)
  endif()

  set(CPACK_GENERATOR TGZ)
  find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
  if(DPKG_SHLIBDEPS)
    list(APPEND CPACK_GENERATOR DEB)
  endif()
  set(CPACK_PACKAGE_CONTACT "The sparsed maintainers <maintainers@sparsed.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  string(TOLOWER "sparsed-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}"
    CPACK_PACKAGE_FILE_NAME)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_PACKAGE_CHECKSUM SHA256)  # beside each, for who downloads it
  set(CPACK_VERBATIM_VARIABLES ON)
  set(CPACK_THREADS 0)
  get_property(CPACK_SPARSED_MEASUREMENT GLOBAL PROPERTY SPARSED_MEASURES)
  set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/PackageOptions.cmake)
  set(CPACK_SPARSED_SOURCE ${PROJECT_SOURCE_DIR})
  set(CPACK_SPARSED_CUDA_LICENCE ${cuda_licence})
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${own_folders})
  include(CPack)
  cpack_add_component(server DESCRIPTION "The server that holds sparse matrices and multiplies them")
  cpack_add_component(client DESCRIPTION "The command line client")
  cpack_add_component(c_interface DESCRIPTION "The client library for C and other languages")
  cpack_add_component(measurement DESCRIPTION "Tests of the GPU kernels, and their benchmark")
  cpack_add_component(c_development GROUP devel)
  cpack_add_component(development GROUP devel)
endfunction()
