"""The tasks on data sets, by their names in configs."""

from experiments.supervised.tasks.adding import AddingTask
from experiments.supervised.tasks.char_lm import CharLMTask
from experiments.supervised.tasks.copying import CopyingTask
from experiments.supervised.tasks.japanese_vowels import JapaneseVowelsTask
from experiments.supervised.tasks.moving_digits import MovingDigitsTask
from experiments.supervised.tasks.order_of_two import OrderOfTwoTask
from experiments.supervised.tasks.pixels import PixelsTask

TASKS = {
    "adding": AddingTask,
    "char-lm": CharLMTask,
    "copying": CopyingTask,
    "japanese-vowels": JapaneseVowelsTask,
    "moving-digits": MovingDigitsTask,
    "order-of-two": OrderOfTwoTask,
    "pixels": PixelsTask,
}
