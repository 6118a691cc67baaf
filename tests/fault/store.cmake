set(store_dir ${CMAKE_CURRENT_LIST_DIR}/store)

# A file system that forgets, fails and fills up, and what to put into a store on it.
sparsed_library(sparsed_store_testing
  ${store_dir}/forgetful_file_system.cc ${store_dir}/store_testing.cc DEPS sparsed_store)

foreach(subject crash damage directory full_disk kill salvage snapshot)
  sparsed_test(fault_store_${subject} ${store_dir}/store_${subject}_test.cc
    DEPS sparsed_store_testing LABELS fault)
endforeach()
