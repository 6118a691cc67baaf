# The papers' own models: their trainer, in an environment of its own (PyTorch), which PyPI gives or the test is skipped.
add_test(NAME papers_models_test
  COMMAND ${PROJECT_SOURCE_DIR}/tools/train/papers/run --python
    ${PROJECT_SOURCE_DIR}/tests/papers/papers_test.py)
set_tests_properties(papers_models_test PROPERTIES LABELS e2e SKIP_RETURN_CODE 77 TIMEOUT 600)
