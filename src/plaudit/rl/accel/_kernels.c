// Critics on a CPU, one network after the other, and of each some rows after the other: they go all the way from inputs
// to gradients, so that what lies between stays in the processor's own cache, and every thread has networks of its own.
// Only members.py calls this, which sees to it that what it gives is right: addresses of float32 numbers without gaps,
// the networks' one after the other.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { VERSION = 2 };  // Of what is given; members.py takes no other.

// The compiler makes the loops for several processors, and the newest that is there is taken.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

typedef Py_ssize_t Int;

// The product of matrices that torch itself calls, columns first. Libraries with integers of 32 bits see the lower half
// of ours, which must come first.
_Static_assert(sizeof(Int) == 8 && sizeof(void *) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "not so here");
typedef void (*Sgemm)(const char *, const char *, const Int *, const Int *, const Int *, const float *, const float *,
                      const Int *, const float *, const Int *, const float *, float *, const Int *);

// Parameters of all networks or of one, or their gradients. Without LayerNorm there are no scales and shifts.
typedef struct {
    float *weight, *bias, *scale, *shift;
} Layer;

// All parameters together, Adam's moments of them, and the targets' parameters, in the same order.
typedef struct {
    float *data, *first, *second, *target;
} Vectors;

typedef struct {
    float first_decay, second_decay, first_share, second_share;  // Of the moments; shares are what decays leave.
    float rate, root, epsilon;                                  // Step: rate * first / (root * sqrt(second) + epsilon)
    float tau;                                                  // How far the targets follow.
} Pace;

typedef struct {
    Sgemm sgemm;
    Int hidden;                           // Layers; another follows, with one output.
    const Int *widths;                    // Of the inputs, and of each hidden layer.
    const Layer *parameters;              // Of each layer.
    float epsilon;                        // Of LayerNorm.
    const float *x;                       // (rows, inputs)
    Int rows;
    float *values;         // (members, rows), or NULL: what the networks say.
    const float *aim;      // (rows,): what they should say, and learn to; or NULL.
    float *told;           // (members, 2), with `aim`: means of squared errors, and of values.
    const int64_t *least;  // (rows,): the network that each row is for, or NULL: all rows are for all.
    float weight;          // Gradient of the values, without `aim`.
    Int first, count;      // Of which inputs the gradient is wanted.
    float *d_x;            // (members, rows, count), with `least` (rows, count); or NULL.
    const Vectors *moved;  // With `aim`: what is changed,
    const Pace *pace;      // and how far.
} Task;

// What is kept of a hidden layer on the way back.
typedef struct {
    float *product, *out, *mean, *rstd;
} Kept;

static Int widest(const Int *widths, Int hidden)
{
    Int width = 0;
    for (Int i = 1; i <= hidden; i++)
        width = widths[i] > width ? widths[i] : width;
    return width;
}

static Int width_of(const Int *widths, Int hidden, Int layer)
{
    return layer < hidden ? widths[layer + 1] : 1;
}

// Rows that go through a network together: what is kept of them takes up half a megabyte, and few are slow.
static Int rows_together(const Int *widths, Int hidden)
{
    const Int fit = (1 << 17) / (2 * hidden * widest(widths, hidden));
    return fit > 32 ? fit : 32;
}

enum { LINE = 16 };  // Numbers in a cache line.

// What begins at a cache line is quick, and products of it are the same to the last digit wherever the room lies. Rows,
// too, have room up to a whole line of them.
static Int whole_lines(Int numbers)
{
    return (numbers + LINE - 1) / LINE * LINE;
}

// Numbers in the room of a thread: what is kept of every layer and the values' gradient, both of rows that are
// together; parameters' gradients; inputs of all rows.
static Int room_size(const Int *widths, Int hidden, Int rows)
{
    const Int together = whole_lines(rows_together(widths, hidden));
    Int size = together * (hidden * (2 * widest(widths, hidden) + 2) + 1) + whole_lines(rows * widths[0]);
    for (Int layer = 0; layer <= hidden; layer++)
        size += whole_lines((widths[layer] + 3) * width_of(widths, hidden, layer));
    return size;
}

static Kept kept_of(const Task *task, float *room, Int layer)
{
    const Int together = whole_lines(rows_together(task->widths, task->hidden));
    const Int matrix = together * widest(task->widths, task->hidden);
    float *product = room + layer * 2 * (matrix + together), *mean = product + 2 * matrix;
    return (Kept){product, product + matrix, mean, mean + together};
}

static float *errors_in(const Task *task, float *room)
{
    return kept_of(task, room, task->hidden).product;
}

static Layer layer_of(const Task *task, Int layer, Int member)
{
    const Layer all = task->parameters[layer];
    const Int step = member * width_of(task->widths, task->hidden, layer);
    const int norm = all.scale != NULL;
    return (Layer){all.weight + step * task->widths[layer], all.bias + step, norm ? all.scale + step : NULL,
                   norm ? all.shift + step : NULL};
}

// Where the gradients of a layer begin, and behind those of the last one the inputs.
static float *behind_layers(const Task *task, float *room, Int count)
{
    float *start = errors_in(task, room) + whole_lines(rows_together(task->widths, task->hidden));
    for (Int layer = 0; layer < count; layer++)
        start += whole_lines((task->widths[layer] + 3) * width_of(task->widths, task->hidden, layer));
    return start;
}

// A layer's gradients: they are used at once, and the next network's take their place.
static Layer gradients_of(const Task *task, float *room, Int layer)
{
    const Int width = width_of(task->widths, task->hidden, layer);
    float *weight = behind_layers(task, room, layer), *bias = weight + task->widths[layer] * width;
    return (Layer){weight, bias, bias + width, bias + 2 * width};
}

// out (rows, columns) = left (rows, inner) times right (inner, columns), rows first; `left_turned` and `right_turned`
// say that a side lies there with rows and columns exchanged, `adds` that it is added to what is there.
static void multiply(const Task *task, int left_turned, int right_turned, Int rows, Int columns, Int inner,
                     const float *left, const float *right, float *out, int adds)
{
    const Int left_step = left_turned ? rows : inner, right_step = right_turned ? inner : columns;
    const float one = 1.0f, before = adds ? 1.0f : 0.0f;
    task->sgemm(right_turned ? "T" : "N", left_turned ? "T" : "N", &columns, &rows, &inner, &one, right, &right_step,
                left, &left_step, &before, out, &columns);
}

// LayerNorm takes so many rows together: each has to be added up before it can go on, and meanwhile others are.
enum { ABREAST = 4 };
_Static_assert(LINE % ABREAST == 0, "there is no room for the rows that are filled up");

static inline float inverse_root(float squares, float share, float epsilon)
{
    return 1.0f / sqrtf(squares * share + epsilon);
}

// What is not a number stays so, and is found out.
static inline float relu(float value)
{
    return value < 0.0f ? 0.0f : value;
}

// out = relu(LayerNorm(product + bias))
FOR_EACH_PROCESSOR
static void norm_relu(Layer layer, Kept kept, Int rows, Int width, float epsilon)
{
    const float *const bias = layer.bias, *const scale = layer.scale, *const shift = layer.shift;
    const float share = 1.0f / (float)width;
    // What is left in the rows behind, for which there is room, may be slow. Nobody reads what comes of them.
    const Int missing = (ABREAST - rows % ABREAST) % ABREAST;
    memset(kept.product + rows * width, 0, (size_t)(missing * width) * sizeof(float));
    for (Int row = 0; row < rows; row += ABREAST) {
        const float *const a = kept.product + row * width, *const b = a + width, *const c = b + width,
                    *const d = c + width;
        float *const to_a = kept.out + row * width, *const to_b = to_a + width, *const to_c = to_b + width,
                     *const to_d = to_c + width;
        float *const mean = kept.mean + row, *const rstd = kept.rstd + row;
        float sum_a = 0.0f, sum_b = 0.0f, sum_c = 0.0f, sum_d = 0.0f;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
        for (Int i = 0; i < width; i++) {
            sum_a += a[i] + bias[i];
            sum_b += b[i] + bias[i];
            sum_c += c[i] + bias[i];
            sum_d += d[i] + bias[i];
        }
        const float mean_a = sum_a * share, mean_b = sum_b * share, mean_c = sum_c * share, mean_d = sum_d * share;
        float square_a = 0.0f, square_b = 0.0f, square_c = 0.0f, square_d = 0.0f;
#pragma omp simd reduction(+ : square_a, square_b, square_c, square_d)
        for (Int i = 0; i < width; i++) {
            const float off_a = a[i] + bias[i] - mean_a, off_b = b[i] + bias[i] - mean_b;
            const float off_c = c[i] + bias[i] - mean_c, off_d = d[i] + bias[i] - mean_d;
            square_a += off_a * off_a;
            square_b += off_b * off_b;
            square_c += off_c * off_c;
            square_d += off_d * off_d;
        }
        const float rstd_a = inverse_root(square_a, share, epsilon), rstd_b = inverse_root(square_b, share, epsilon);
        const float rstd_c = inverse_root(square_c, share, epsilon), rstd_d = inverse_root(square_d, share, epsilon);
#pragma omp simd
        for (Int i = 0; i < width; i++) {
            to_a[i] = relu((a[i] + bias[i] - mean_a) * rstd_a * scale[i] + shift[i]);
            to_b[i] = relu((b[i] + bias[i] - mean_b) * rstd_b * scale[i] + shift[i]);
            to_c[i] = relu((c[i] + bias[i] - mean_c) * rstd_c * scale[i] + shift[i]);
            to_d[i] = relu((d[i] + bias[i] - mean_d) * rstd_d * scale[i] + shift[i]);
        }
        mean[0] = mean_a, mean[1] = mean_b, mean[2] = mean_c, mean[3] = mean_d;
        rstd[0] = rstd_a, rstd[1] = rstd_b, rstd[2] = rstd_c, rstd[3] = rstd_d;
    }
}

// out = relu(out + bias)
FOR_EACH_PROCESSOR
static void add_relu(Layer layer, float *out, Int rows, Int width)
{
    for (Int row = 0; row < rows; row++, out += width) {
#pragma omp simd
        for (Int i = 0; i < width; i++)
            out[i] = relu(out[i] + layer.bias[i]);
    }
}

// The last layer.
FOR_EACH_PROCESSOR
static void value_of(Layer last, const float *out, float *values, Int rows, Int width)
{
    for (Int row = 0; row < rows; row++, out += width) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (Int i = 0; i < width; i++)
            sum += out[i] * last.weight[i];
        values[row] = sum + last.bias[0];
    }
}

// From the values' gradient to that of the last hidden layer before its ReLU, which takes the place of its output.
// That of the last layer's weights is added up, if wanted.
FOR_EACH_PROCESSOR
static void through_last(const float *error, const float *weight, float *d_weight, float *out, Int rows, Int width)
{
    for (Int row = 0; row < rows; row++, out += width) {
        const float known = error[row];
#pragma omp simd
        for (Int i = 0; i < width; i++) {
            if (d_weight)
                d_weight[i] += known * out[i];
            out[i] = out[i] <= 0.0f ? 0.0f : known * weight[i];
        }
    }
}

// From the gradient of a ReLU's output to that of its input, in its place.
FOR_EACH_PROCESSOR
static void through_relu(const float *out, float *gradient, Int size)
{
#pragma omp simd
    for (Int i = 0; i < size; i++)
        gradient[i] = out[i] <= 0.0f ? 0.0f : gradient[i];
}

// From the gradient of LayerNorm's output to that of the product, in its place. Those of the parameters are added up,
// if wanted.
FOR_EACH_PROCESSOR
static void through_norm(Layer layer, Kept kept, float *gradient, Int rows, Int width, Layer found)
{
    const float *product = kept.product;
    const float share = 1.0f / (float)width;
    float *const d_bias = found.bias, *const d_scale = found.scale, *const d_shift = found.shift;
    for (Int row = 0; row < rows; row++, gradient += width, product += width) {
        const float centre = kept.mean[row], inverse = kept.rstd[row];
        float sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
        for (Int i = 0; i < width; i++) {
            const float scaled = gradient[i] * layer.scale[i];
            sum += scaled;
            along += scaled * (product[i] + layer.bias[i] - centre);
        }
        sum *= share;
        along *= inverse * share;
#pragma omp simd
        for (Int i = 0; i < width; i++) {
            const float hat = (product[i] + layer.bias[i] - centre) * inverse, known = gradient[i];
            const float back = (known * layer.scale[i] - sum - hat * along) * inverse;
            gradient[i] = back;
            if (d_bias) {
                d_bias[i] += back;
                d_scale[i] += known * hat;
                d_shift[i] += known;
            }
        }
    }
}

// The gradient of a bias that is added to the product at once.
FOR_EACH_PROCESSOR
static void to_bias(const float *gradient, float *d_bias, Int rows, Int width)
{
    for (Int row = 0; row < rows; row++, gradient += width) {
#pragma omp simd
        for (Int i = 0; i < width; i++)
            d_bias[i] += gradient[i];
    }
}

// What a network makes of some inputs, (rows, inputs); what the way back needs is kept in the room.
static void forward(const Task *task, Int member, const float *x, Int rows, float *room, float *values)
{
    for (Int number = 0; number < task->hidden; number++) {
        const Layer layer = layer_of(task, number, member);
        const Kept kept = kept_of(task, room, number);
        const Int inputs = task->widths[number], width = task->widths[number + 1];
        multiply(task, 0, 0, rows, width, inputs, x, layer.weight, layer.scale ? kept.product : kept.out, 0);
        if (layer.scale)
            norm_relu(layer, kept, rows, width, task->epsilon);
        else
            add_relu(layer, kept.out, rows, width);
        x = kept.out;
    }
    if (values)
        value_of(layer_of(task, task->hidden, member), x, values, rows, task->widths[task->hidden]);
}

// From the gradient of the values to those of inputs, (rows, count), if `d_x` has room for them, and of parameters, if
// the task is to learn, which are added to those of earlier rows, if there are any; after `forward` with the same room.
static void backward(const Task *task, Int member, const float *x, Int rows, float *room, float *d_x, int adds)
{
    const Int hidden = task->hidden;
    const int learns = task->aim != NULL;
    const float *error = errors_in(task, room);
    Layer found = {NULL, NULL, NULL, NULL};
    if (learns) {
        found = gradients_of(task, room, hidden);
        if (!adds)
            memset(found.weight, 0, (size_t)(task->widths[hidden] + 1) * sizeof(float));  // And the bias behind it.
        to_bias(error, found.bias, rows, 1);
    }
    float *gradient = kept_of(task, room, hidden - 1).out;
    through_last(error, layer_of(task, hidden, member).weight, found.weight, gradient, rows, task->widths[hidden]);
    for (Int number = hidden - 1; number >= 0; number--) {
        const Layer layer = layer_of(task, number, member);
        const Kept kept = kept_of(task, room, number);
        const Int inputs = task->widths[number], width = task->widths[number + 1];
        if (learns) {
            found = gradients_of(task, room, number);
            if (!adds)
                memset(found.bias, 0, (size_t)(3 * width) * sizeof(float));  // And scale and shift behind it.
        }
        if (number < hidden - 1)
            through_relu(kept.out, gradient, rows * width);
        if (layer.scale)
            through_norm(layer, kept, gradient, rows, width, found);
        else if (learns)
            to_bias(gradient, found.bias, rows, width);
        if (learns)
            multiply(task, 1, 0, inputs, width, rows, number ? kept_of(task, room, number - 1).out : x, gradient,
                     found.weight, adds);
        if (number) {
            multiply(task, 0, 1, rows, inputs, width, gradient, layer.weight, kept.product, 0);
            gradient = kept.product;
        } else if (d_x)
            multiply(task, 0, 1, rows, task->count, width, gradient, layer.weight + task->first * width, d_x, 0);
    }
}

// Adam's step of some parameters, and the targets' after it.
FOR_EACH_PROCESSOR
static void move(const Vectors *all, const Pace *pace, const float *gradient, Int start, Int size)
{
    float *const data = all->data + start, *const target = all->target + start;
    float *const first = all->first + start, *const second = all->second + start;
    const Pace by = *pace;
#pragma omp simd
    for (Int i = 0; i < size; i++) {
        const float slope = gradient[i];
        const float mean = by.first_decay * first[i] + by.first_share * slope;
        const float square = by.second_decay * second[i] + by.second_share * slope * slope;
        const float moved = data[i] - by.rate * mean / (by.root * sqrtf(square) + by.epsilon);
        first[i] = mean;
        second[i] = square;
        data[i] = moved;
        target[i] += by.tau * (moved - target[i]);
    }
}

// The step of one network, whose gradients are in the room.
static void descend(const Task *task, Int member, float *room)
{
    for (Int number = 0; number <= task->hidden; number++) {
        const Layer layer = layer_of(task, number, member), found = gradients_of(task, room, number);
        const float *const parts[] = {layer.weight, layer.bias, layer.scale, layer.shift};
        const float *const gradients[] = {found.weight, found.bias, found.scale, found.shift};
        const Int width = width_of(task->widths, task->hidden, number);
        for (int kind = 0; kind < 4; kind++)
            if (parts[kind])
                move(task->moved, task->pace, gradients[kind], parts[kind] - task->moved->data,
                     kind ? width : width * task->widths[number]);
    }
}

// The gradient of half the mean squared error by some of the values.
static void find_errors(const Task *task, const float *values, const float *aim, Int rows, float *error, float *told)
{
    const float share = 1.0f / (float)task->rows;
    float squares = 0.0f, sum = 0.0f;
    for (Int row = 0; row < rows; row++) {
        const float off = values[row] - aim[row];
        squares += off * off;
        sum += values[row];
        error[row] = off * share;
    }
    told[0] += squares * share;
    told[1] += sum * share;
}

// One network and all rows that it is given, (rows, inputs).
static void run_member(const Task *task, Int place, Int member, const float *x, Int rows, float *room, float *d_x)
{
    const Int together = rows_together(task->widths, task->hidden);
    float *error = errors_in(task, room), *told = task->aim ? task->told + 2 * place : NULL;
    if (told)
        told[0] = told[1] = 0.0f;
    for (Int start = 0; start < rows; start += together) {
        const float *inputs = x + start * task->widths[0];
        const Int some = rows - start < together ? rows - start : together;
        float *values = task->values ? task->values + place * task->rows + start : task->aim ? error : NULL;
        forward(task, member, inputs, some, room, values);
        if (task->aim)
            find_errors(task, values, task->aim + start, some, error, told);
        else if (d_x)
            for (Int row = 0; row < some; row++)
                error[row] = task->weight;
        if (task->aim || d_x)
            backward(task, member, inputs, some, room, d_x ? d_x + start * task->count : NULL, start > 0);
    }
    if (task->aim)
        descend(task, member, room);
}

// The rows of a network that is the least of all there, which are few: by themselves.
static void run_where_least(const Task *task, Int place, Int member, float *room)
{
    const Int inputs = task->widths[0], count = task->count;
    float *gathered = behind_layers(task, room, task->hidden + 1), *d_x = gathered;  // In place of the used.
    Int rows = 0;
    for (Int row = 0; row < task->rows; row++)
        if (task->least[row] == member)
            memcpy(gathered + inputs * rows++, task->x + row * inputs, (size_t)inputs * sizeof(float));
    run_member(task, place, member, gathered, rows, room, d_x);
    for (Int row = 0; row < task->rows; row++)
        if (task->least[row] == member) {
            memcpy(task->d_x + row * count, d_x, (size_t)count * sizeof(float));
            d_x += count;
        }
}

static PyObject *run(PyObject *self, PyObject *args)
{
    unsigned long long sgemm, x, values, aim, told, least, d_x, rooms;
    Py_buffer widths, parameters, members, moved, pace;
    Task task;
    int threads;
    if (!PyArg_ParseTuple(args, "Ky*y*y*fKnKKKKfnnKz*z*Ki", &sgemm, &widths, &parameters, &members, &task.epsilon,
                          &x, &task.rows, &values, &aim, &told, &least, &task.weight, &task.first,
                          &task.count, &d_x, &moved, &pace, &rooms, &threads))
        return NULL;
    task.sgemm = (Sgemm)sgemm;
    task.hidden = widths.len / (Int)sizeof(Int) - 1;
    task.widths = widths.buf;
    task.parameters = parameters.buf;
    task.x = (float *)x;
    task.values = (float *)values;
    task.aim = (float *)aim;
    task.told = (float *)told;
    task.least = (int64_t *)least;
    task.d_x = (float *)d_x;
    task.moved = moved.buf;
    task.pace = pace.buf;
    const Int count = members.len / (Int)sizeof(Int), *asked = members.buf;
    const Int size = room_size(task.widths, task.hidden, task.rows);
    Py_BEGIN_ALLOW_THREADS
    // Who is done first takes the next, since cores are rarely equally free. What comes of it is always the same.
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (Int place = 0; place < count; place++) {
        float *mine = (float *)rooms + THREAD * size;
        if (task.least)
            run_where_least(&task, place, asked[place], mine);
        else
            run_member(&task, place, asked[place], task.x, task.rows, mine,
                       task.d_x ? task.d_x + place * task.rows * task.count : NULL);
    }
    Py_END_ALLOW_THREADS
    Py_buffer *const held[] = {&widths, &parameters, &members, &moved, &pace};
    for (int i = 0; i < 5; i++)
        PyBuffer_Release(held[i]);
    Py_RETURN_NONE;
}

static PyObject *room(PyObject *self, PyObject *args)
{
    Py_buffer widths;
    Int rows;
    if (!PyArg_ParseTuple(args, "y*n", &widths, &rows))
        return NULL;
    const Int size = room_size(widths.buf, widths.len / (Int)sizeof(Int) - 1, rows);
    PyBuffer_Release(&widths);
    return PyLong_FromSsize_t(size);
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, NULL}, {"room", room, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "VERSION", VERSION) < 0)
        Py_CLEAR(made);
    return made;
}
