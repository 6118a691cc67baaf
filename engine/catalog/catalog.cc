#include "engine/catalog/catalog.h"
