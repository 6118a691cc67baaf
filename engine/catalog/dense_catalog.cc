#include "engine/catalog/dense_catalog.h"
