// LayerNorm and ReLU between two products of an ensemble, in one way through memory. Only between.py calls this, which
// sees to it that what it gives is right: addresses of float32 numbers, (members, rows, width), without gaps; but bias,
// scale and shift have one row a member, `stride` numbers apart.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <string.h>

enum { VERSION = 1 };  // Of what is given; between.py takes no other.

// The compiler makes the loops for several processors, and the newest that is there is taken.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

typedef struct {
    const float *bias, *scale, *shift;
    Py_ssize_t width;
} Layer;

// out = relu(LayerNorm(product + bias)) of some rows of one member.
FOR_EACH_PROCESSOR
static void forward_rows(Layer layer, const float *product, float *out, float *mean, float *rstd, Py_ssize_t rows,
                         float epsilon)
{
    const Py_ssize_t width = layer.width;
    for (Py_ssize_t row = 0; row < rows; row++, product += width, out += width) {
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (Py_ssize_t i = 0; i < width; i++) {
            out[i] = product[i] + layer.bias[i];
            sum += out[i];
        }
        const float centre = sum / (float)width;
#pragma omp simd reduction(+ : squares)
        for (Py_ssize_t i = 0; i < width; i++)
            squares += (out[i] - centre) * (out[i] - centre);
        const float inverse = 1.0f / sqrtf(squares / (float)width + epsilon);
#pragma omp simd
        for (Py_ssize_t i = 0; i < width; i++) {
            const float value = (out[i] - centre) * inverse * layer.scale[i] + layer.shift[i];
            out[i] = value < 0.0f ? 0.0f : value;  // What is not a number stays so, and is found out.
        }
        mean[row] = centre;
        rstd[row] = inverse;
    }
}

// From the gradient of out to that of the product, in its place. Those of the parameters are added up, if wanted.
FOR_EACH_PROCESSOR
static void backward_rows(Layer layer, float *gradient, const float *product, const float *out, const float *mean,
                          const float *rstd, Py_ssize_t rows, float *d_bias, float *d_scale, float *d_shift)
{
    const Py_ssize_t width = layer.width;
    for (Py_ssize_t row = 0; row < rows; row++, gradient += width, product += width, out += width) {
        const float centre = mean[row], inverse = rstd[row];
        float sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
        for (Py_ssize_t i = 0; i < width; i++) {
            gradient[i] = out[i] <= 0.0f ? 0.0f : gradient[i];
            const float scaled = gradient[i] * layer.scale[i];
            sum += scaled;
            along += scaled * (product[i] + layer.bias[i] - centre);
        }
        sum /= (float)width;
        along *= inverse / (float)width;
#pragma omp simd
        for (Py_ssize_t i = 0; i < width; i++) {
            const float hat = (product[i] + layer.bias[i] - centre) * inverse, known = gradient[i];
            const float found = (known * layer.scale[i] - sum - hat * along) * inverse;
            gradient[i] = found;
            if (d_bias) {
                d_bias[i] += found;
                d_scale[i] += known * hat;
                d_shift[i] += known;
            }
        }
    }
}

static PyObject *norm_relu(PyObject *self, PyObject *args)
{
    unsigned long long product, bias, scale, shift, out, mean, rstd;
    Py_ssize_t members, rows, width, stride;
    float epsilon;
    int threads;
    if (!PyArg_ParseTuple(args, "KKKKKKKnnnnfi", &product, &bias, &scale, &shift, &out, &mean, &rstd, &members, &rows,
                          &width, &stride, &epsilon, &threads))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    const Py_ssize_t blocks = threads, each = (rows + blocks - 1) / blocks;
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
    for (Py_ssize_t block = 0; block < blocks; block++)
        for (Py_ssize_t member = 0; member < members; member++) {
            const Py_ssize_t first = block * each, last = first + each < rows ? first + each : rows;
            const Py_ssize_t start = member * rows + first, of = member * stride;
            const Layer layer = {(float *)bias + of, (float *)scale + of, (float *)shift + of, width};
            if (first < last)
                forward_rows(layer, (float *)product + start * width, (float *)out + start * width,
                             (float *)mean + start, (float *)rstd + start, last - first, epsilon);
        }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *norm_relu_backward(PyObject *self, PyObject *args)
{
    unsigned long long gradient, product, out, bias, scale, mean, rstd, d_bias, d_scale, d_shift;
    Py_ssize_t members, rows, width;
    int threads;
    if (!PyArg_ParseTuple(args, "KKKKKKKKKKnnni", &gradient, &product, &out, &bias, &scale, &mean, &rstd, &d_bias,
                          &d_scale, &d_shift, &members, &rows, &width, &threads))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    // One thread a member, so that the sums over its rows are always the same.
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Py_ssize_t member = 0; member < members; member++) {
        const Py_ssize_t start = member * rows, of = member * width;
        const Layer layer = {(float *)bias + of, (float *)scale + of, NULL, width};
        float *sums[3] = {NULL, NULL, NULL};
        if (d_bias) {
            const unsigned long long places[3] = {d_bias, d_scale, d_shift};
            for (int i = 0; i < 3; i++) {
                sums[i] = (float *)places[i] + of;
                memset(sums[i], 0, (size_t)width * sizeof(float));
            }
        }
        backward_rows(layer, (float *)gradient + start * width, (float *)product + start * width,
                      (float *)out + start * width, (float *)mean + start, (float *)rstd + start, rows, sums[0],
                      sums[1], sums[2]);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"norm_relu", norm_relu, METH_VARARGS, NULL},
                                {"norm_relu_backward", norm_relu_backward, METH_VARARGS, NULL},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "VERSION", VERSION) < 0)
        Py_CLEAR(made);
    return made;
}
