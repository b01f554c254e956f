# SPDX-License-Identifier: MIT
"""Django in one module: settings, a model on SQLite, a view of each kind, a template."""

import os

import django
from django.conf import settings
from django.http import HttpResponse, JsonResponse

settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF="shop.site", SECRET_KEY="of a test", USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3",
                           "NAME": os.environ["SHOP_DATABASE"]}},
    MIDDLEWARE=["shop.site.Stamp", "django.middleware.common.CommonMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}])
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402 (settings come first)
from django.db import connection, models  # noqa: E402
from django.template import engines  # noqa: E402
from django.urls import path  # noqa: E402
from django.views import View  # noqa: E402
from django.views.decorators.http import require_GET  # noqa: E402


class Item(models.Model):
    name = models.CharField(max_length=40)
    cents = models.IntegerField()

    class Meta:
        app_label = "shop"


def stock_up() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Item)
    Item.objects.bulk_create(Item(name=f"item {one}", cents=100 + 7 * one) for one in range(10))


class Stamp:
    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        response = self.get_response(request)
        response["X-Shop"] = "open"
        return response


@require_GET
def item(request, number: int):
    row = Item.objects.get(pk=number)
    return JsonResponse({"name": row.name, "cents": row.cents})


PAGE = engines["django"].from_string("<p>{{ item.name }}: {{ item.cents }}</p>")


class ItemPage(View):
    def get(self, request, number: int):
        return HttpResponse(PAGE.render({"item": Item.objects.get(pk=number)}, request))


urlpatterns = [path("item/<int:number>", item), path("page/<int:number>", ItemPage.as_view())]
application = get_wsgi_application()
